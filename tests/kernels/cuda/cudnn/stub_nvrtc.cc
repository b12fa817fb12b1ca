// A libnvrtc.so without NVRTC's functions, which is enough to be found.
extern "C" int shale_stub_nvrtc() { return 0; }
