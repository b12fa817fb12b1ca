// The device's source, as C++.
#include "kernels/cuda/cross_entropy.cu"
