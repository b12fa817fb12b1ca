// A libnvrtc.so, or its builtins, without NVRTC's functions, which is enough to be found.
extern "C" int shale_stub_nvrtc() { return 0; }
