#include "kernels/device/cpu/counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/device/cpu/ignore_sync.h"

namespace shale {
namespace {

constexpr uint32_t kAwake = 0, kAsleep = 1, kReached = 2;

}  // namespace

// The kernel compares and sleeps at once, so no wake-up between the two is lost. A thread that has not fallen asleep
// yet costs no call to wake it, as one of std::atomic would.
void Counter::Sleep(Waiting& self) {
  uint32_t awake = kAwake;
  self.state.compare_exchange_strong(awake, kAsleep);
  while (self.state.load(std::memory_order_acquire) != kReached) {
    syscall(SYS_futex, &self.state, FUTEX_WAIT_PRIVATE, kAsleep, nullptr);
  }
}

void Counter::Wake(Waiting& waiting) {
  // The other thread may end its wait, and this object, right after the exchange. The kernel only compares addresses.
  if (waiting.state.exchange(kReached, std::memory_order_acq_rel) != kAsleep) return;
  syscall(SYS_futex, &waiting.state, FUTEX_WAKE_PRIVATE, 1);
}

// A waiting thread writes wake_at_, then reads value_. The advancing thread writes value_, then reads wake_at_. All
// four accesses are sequentially consistent, so at least one of the two threads sees the other's write: no wake-up is
// lost.

void Counter::Advance() {
  const uint64_t value = value_.load(std::memory_order_relaxed) + 1;
  value_.store(value, std::memory_order_seq_cst);
  if (value < wake_at_.load(std::memory_order_seq_cst)) return;
  IgnoreSyncForThreadSanitizer ignore;
  Waiting* reached = nullptr;
  {
    std::lock_guard lock(mutex_);
    uint64_t wake_at = kNobody;
    for (Waiting** link = &waiting_; *link != nullptr;) {
      Waiting* const waiting = *link;
      if (waiting->target <= value) {
        *link = std::exchange(waiting->next, reached);
        reached = waiting;
      } else {
        wake_at = std::min(wake_at, waiting->target);
        link = &waiting->next;
      }
    }
    wake_at_.store(wake_at, std::memory_order_relaxed);
  }
  while (reached != nullptr) {
    Waiting* const waiting = std::exchange(reached, reached->next);
    Wake(*waiting);
  }
}

uint64_t Counter::AwaitAtLeast(uint64_t target) const {
  const uint64_t value = value_.load(std::memory_order_acquire);
  if (value >= target) return value;
  {
    IgnoreSyncForThreadSanitizer ignore;
    Waiting self{.target = target, .state = kAwake};
    bool waits = false;
    {
      std::lock_guard lock(mutex_);
      if (target < wake_at_.load(std::memory_order_relaxed)) wake_at_.store(target, std::memory_order_seq_cst);
      waits = value_.load(std::memory_order_seq_cst) < target;
      if (waits) self.next = std::exchange(waiting_, &self);
    }
    if (waits) Sleep(self);
  }
  return value_.load(std::memory_order_acquire);
}

}  // namespace shale
