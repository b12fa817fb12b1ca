// A libnvrtc.so of no functions: enough to be found.
extern "C" int shale_stub_nvrtc() { return 0; }
