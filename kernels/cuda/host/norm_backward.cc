// The device's source, as C++.
#include "kernels/cuda/norm_backward.cu"
