// Compiles the CUDA source as plain C++.
#include "kernels/cuda/update_lion.cu"
