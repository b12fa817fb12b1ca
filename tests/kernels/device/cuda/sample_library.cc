// The library that shared_library_test loads.
extern "C" int ShaleSampleAnswer(int question) { return 2 * question; }
