// Compiles the CUDA source as plain C++.
#include "kernels/cuda/update.cu"
