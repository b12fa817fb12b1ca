// The device's source, as C++.
#include "kernels/cuda/scalar_ops.cu"
