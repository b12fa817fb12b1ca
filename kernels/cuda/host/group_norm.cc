// Compiles the CUDA source as plain C++.
#include "kernels/cuda/group_norm.cu"
