// The device's source, as C++.
#include "kernels/cuda/attention.cu"
