// Compiles the CUDA source as plain C++.
#include "kernels/cuda/activation.cu"
