// IgnoreSyncForThreadSanitizer: hides synchronization, and the fields that it guards, from ThreadSanitizer. See [Note:
// happens-before of streams].
#pragma once

#if defined(__SANITIZE_THREAD__)
#define SHALE_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHALE_THREAD_SANITIZER 1
#endif
#endif

#ifdef SHALE_THREAD_SANITIZER
extern "C" void AnnotateIgnoreSyncBegin(const char* file, int line);
extern "C" void AnnotateIgnoreSyncEnd(const char* file, int line);
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);
#endif

namespace shale {

// [Note: happens-before of streams]
// A missing wait between streams must be a data race for ThreadSanitizer even if the threads happen to run in the right
// order. To ThreadSanitizer every mutex, condition variable and acquire/release pair is intended order, so a queue with
// a lock would order the streams by accident: stream A unlocks after its work, the launching thread locks to enqueue
// there, then enqueues on stream B, and A's work seems to be ordered before B's. Hence
// - order passes only through the value of a Counter (release when it advances, acquire in the thread that waits): from
//   enqueueing to running, from an event's record to the streams that wait for it, from a stream's end to Synchronize;
//   and, once per turn of a stream's ring of slots, from running to enqueueing again;
// - synchronization that only blocks and wakes threads is hidden from ThreadSanitizer while an
//   IgnoreSyncForThreadSanitizer lives; so are the reads and writes of its thread, because without the mutex that
//   guards them the list of waiting threads would seem to be a data race.
// For the same reason streams and events refer to one another by plain pointers: the reference count of a shared_ptr is
// an acquire/release pair too.
class IgnoreSyncForThreadSanitizer {
 public:
#ifdef SHALE_THREAD_SANITIZER
  IgnoreSyncForThreadSanitizer() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~IgnoreSyncForThreadSanitizer() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
#else
  IgnoreSyncForThreadSanitizer() {}
#endif
  IgnoreSyncForThreadSanitizer(const IgnoreSyncForThreadSanitizer&) = delete;
  IgnoreSyncForThreadSanitizer& operator=(const IgnoreSyncForThreadSanitizer&) = delete;
};

}  // namespace shale
