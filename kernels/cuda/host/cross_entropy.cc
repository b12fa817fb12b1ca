// Compiles the CUDA source as plain C++.
#include "kernels/cuda/cross_entropy.cu"
