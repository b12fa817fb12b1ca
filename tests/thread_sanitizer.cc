// What ThreadSanitizer leaves out. oneDNN is a library of the system, which is not compiled with ThreadSanitizer: how
// its threads wait for each other is not seen there, and copies and allocations within it would look like races.
#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libdnnl.so\n"; }
#endif
