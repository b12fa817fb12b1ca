// Counter: a count that one thread advances and that other threads wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

namespace shale {

// Everything that the advancing thread did before an Advance is visible to a thread once AwaitAtLeast has returned that
// count to it. Nothing else is ordered: see [Note: happens-before of streams] in ignore_sync.h. Waiting blocks and
// never spins, since there are more streams than cores. Reaching a count wakes the threads that wait for it, and no
// others: a thread that waits for the end of a step sleeps until then, however many streams wait for parts of it.
class Counter {
 public:
  // Adds one. Called by one thread only.
  void Advance();
  // Blocks until the count has reached `target`. Returns the count, which may be larger. Any thread may call.
  uint64_t AwaitAtLeast(uint64_t target) const;
  // Returns the count as the advancing thread sees it. Orders nothing.
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

  // A thread that waits, in its own stack frame.
  struct Waiting {
    uint64_t target;
    // kAwake, kAsleep or kReached (counter.cc). From kReached on, only the waiting thread refers to this object.
    std::atomic<uint32_t> state;
    Waiting* next = nullptr;
  };
  static void Sleep(Waiting& self);
  static void Wake(Waiting& waiting);

  std::atomic<uint64_t> value_ = 0;
  // At most the smallest count that a thread waits for. Smaller counts wake nobody. Changed with mutex_ held.
  mutable std::atomic<uint64_t> wake_at_ = kNobody;
  mutable std::mutex mutex_;
  mutable Waiting* waiting_ = nullptr;  // A list, in no order. Read and changed with mutex_ held.
};

}  // namespace shale
