// Compiles the CUDA source as plain C++.
#include "kernels/cuda/update_adamw_8bit.cu"
