// The device's source, as C++.
#include "kernels/cuda/group_norm.cu"
