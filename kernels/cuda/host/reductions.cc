// Compiles the CUDA source as plain C++.
#include "kernels/cuda/reductions.cu"
