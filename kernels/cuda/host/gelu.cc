// The device's source, as C++.
#include "kernels/cuda/gelu.cu"
