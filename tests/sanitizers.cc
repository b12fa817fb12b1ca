#include "tests/sanitizers.h"

// What sanitizers leave out: libraries of the system, which are not compiled with them.
#ifdef __SANITIZE_THREAD__
// How the threads of oneDNN wait for each other is not seen there, so its copies and allocations would look like races.
// Nor are the counters of references by which Gloo waits, in the destructor of a buffer, for the thread that still
// signals it, and by which the last copy of an absl::Status frees what all copies share.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libdnnl.so\n"
         "race:gloo::transport::tcp::UnboundBuffer\n"
         "race:absl::*Status::Unref\n";
}
#endif

#ifdef SHALE_ADDRESS_SANITIZER
// Gloo looks up a host name and does not free the answer.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:gloo::transport::tcp::CreateDeviceAttr\n"; }
#endif

namespace shale {

bool HasSanitizer() {
#if defined(SHALE_ADDRESS_SANITIZER) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace shale
