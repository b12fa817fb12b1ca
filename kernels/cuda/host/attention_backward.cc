// Compiles the CUDA source as plain C++.
#include "kernels/cuda/attention_backward.cu"
