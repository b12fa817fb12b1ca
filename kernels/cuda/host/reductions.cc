// The device's source, as C++.
#include "kernels/cuda/reductions.cu"
