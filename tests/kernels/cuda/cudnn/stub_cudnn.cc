// A libcudnn.so.9 that only tells its version, which is too old for us.
#include <cstddef>

extern "C" size_t cudnnGetVersion() { return 91501; }
