// Compiles the CUDA source as plain C++.
#include "kernels/cuda/broadcast_bias.cu"
