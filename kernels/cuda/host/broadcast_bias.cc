// The device's source, as C++.
#include "kernels/cuda/broadcast_bias.cu"
