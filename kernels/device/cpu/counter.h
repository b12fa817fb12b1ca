// Counter: a count that one thread advances and that other threads wait for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>

namespace shale {

// Everything that the advancing thread did before an Advance is visible to a thread once AwaitAtLeast has returned that
// count to it. Nothing else is ordered: see [Note: happens-before of streams] in ignore_sync.h. Waiting blocks and
// never spins, since there are more streams than cores.
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

  std::atomic<uint64_t> value_ = 0;
  // The smallest count that a thread waits for. Reaching it wakes the waiting threads; smaller counts do not. Changed
  // with mutex_ held.
  mutable std::atomic<uint64_t> wake_at_ = kNobody;
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_;
};

}  // namespace shale
