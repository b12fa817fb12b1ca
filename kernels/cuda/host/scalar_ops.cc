// Compiles the CUDA source as plain C++.
#include "kernels/cuda/scalar_ops.cu"
