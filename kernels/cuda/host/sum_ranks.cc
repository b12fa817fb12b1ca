// Compiles the CUDA source as plain C++.
#include "kernels/cuda/sum_ranks.cu"
