// The device's source, as C++.
#include "kernels/cuda/embedding.cu"
