// The device's source, as C++.
#include "kernels/cuda/sum_ranks.cu"
