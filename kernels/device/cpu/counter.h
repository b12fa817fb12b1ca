// A count that one thread advances and that others block on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

namespace shale {

// What the advancing thread did before Advance is visible to a thread for which AwaitAtLeast has returned that count,
// and nothing else is ordered: see [Note: happens-before of streams] in ignore_sync.h. Waiting blocks and never spins,
// for there are more streams than cores.
class Counter {
 public:
  // Adds one. One thread only.
  void Advance();
  // Blocks until the count has reached `target`. Returns the count, which may be larger. Any thread.
  uint64_t AwaitAtLeast(uint64_t target) const;
  // The advancing thread's own view.
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kNobody = std::numeric_limits<uint64_t>::max();

  std::atomic<uint64_t> value_ = 0;
  // The least count that somebody waits for: reaching it wakes the waiting threads, smaller counts do not disturb them.
  // Changed with mutex_ held.
  mutable std::atomic<uint64_t> wake_at_ = kNobody;
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
};

}  // namespace shale
