// A library that opens others by bare name, as NVRTC and cuDNN do. The BUILD file gives it the names of theirs.
#include <dlfcn.h>

extern "C" bool ShaleOpensByName(const char* file) { return dlopen(file, RTLD_NOW | RTLD_LOCAL) != nullptr; }
