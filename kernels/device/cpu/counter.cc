#include "kernels/device/cpu/counter.h"

#include "kernels/device/cpu/ignore_sync.h"

namespace shale {

// A waiting thread writes wake_at_, then reads value_. The advancing thread writes value_, then reads wake_at_. All
// four accesses are sequentially consistent, so at least one of the two threads sees the other's write: no wake-up is
// lost.

void Counter::Advance() {
  const uint64_t value = value_.load(std::memory_order_relaxed) + 1;
  value_.store(value, std::memory_order_seq_cst);
  if (value < wake_at_.load(std::memory_order_seq_cst)) return;
  IgnoreSyncForThreadSanitizer ignore;
  {
    std::lock_guard lock(mutex_);
    wake_at_.store(kNobody, std::memory_order_relaxed);
  }
  reached_.notify_all();  // Threads whose count has not been reached yet set wake_at_ again.
}

uint64_t Counter::AwaitAtLeast(uint64_t target) const {
  const uint64_t value = value_.load(std::memory_order_acquire);
  if (value >= target) return value;
  {
    IgnoreSyncForThreadSanitizer ignore;
    std::unique_lock lock(mutex_);
    while (true) {
      if (target < wake_at_.load(std::memory_order_relaxed)) wake_at_.store(target, std::memory_order_seq_cst);
      if (value_.load(std::memory_order_seq_cst) >= target) break;
      reached_.wait(lock);
    }
  }
  return value_.load(std::memory_order_acquire);
}

}  // namespace shale
