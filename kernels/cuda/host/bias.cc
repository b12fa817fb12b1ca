// The device's source, as C++.
#include "kernels/cuda/bias.cu"
