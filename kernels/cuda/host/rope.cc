// The device's source, as C++.
#include "kernels/cuda/rope.cu"
