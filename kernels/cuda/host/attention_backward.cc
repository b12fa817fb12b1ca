// The device's source, as C++.
#include "kernels/cuda/attention_backward.cu"
