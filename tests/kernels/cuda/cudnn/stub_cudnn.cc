// A libcudnn.so.9 that is too old for us, and nothing else.
#include <cstddef>

extern "C" size_t cudnnGetVersion() { return 91501; }
