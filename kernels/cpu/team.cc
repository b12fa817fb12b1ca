#include "kernels/cpu/team.h"

#include <chrono>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace shale::cpu {
namespace {

constexpr std::chrono::microseconds kSpin{100};

// Tells the processor that the thread waits, which leaves more of a core to the other thread on it.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `value` is no longer `old`. The thread that changes it must notify.
void AwaitChange(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() - begin < kSpin);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

Team::~Team() { Join(); }

absl::Status Team::Start() {
  if (threads_ == 1 || started_) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  if (started_) return absl::OkStatus();
  helpers_.reserve(threads_ - 1);
  try {
    for (int i = 1; i < threads_; ++i) {
      helpers_.emplace_back([this, i, seen = round_.load()] { Help(i, seen); });
    }
  } catch (const std::system_error& error) {
    const size_t started = helpers_.size();
    Join();
    return absl::ResourceExhaustedError(absl::StrCat("the system started ", started, " of the ", threads_ - 1,
                                                     " helper threads of a rank: ", error.what(),
                                                     "; lower runtime.threads_per_rank"));
  }
  started_ = true;
  return absl::OkStatus();
}

void Team::Join() {
  ends_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
  helpers_.clear();
  ends_ = false;
}

void Team::RunErased(int count, Call call, const void* work) {
  if (count <= 1) return call(work, 0);
  const std::lock_guard lock(mutex_);
  if (helpers_.empty()) {
    for (int i = 0; i < count; ++i) call(work, i);
    return;
  }
  count_ = count;
  call_ = call;
  work_ = work;
  helping_.store(static_cast<uint32_t>(threads_ - 1), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  call(work, 0);
  for (uint32_t left; (left = helping_.load(std::memory_order_acquire)) != 0;) AwaitChange(helping_, left);
}

void Team::Help(int i, uint32_t seen) {
  for (;; ++seen) {  // No round is missed: the next one begins when all helpers have finished this one.
    AwaitChange(round_, seen);
    if (ends_) return;
    if (i < count_) call_(work_, i);
    if (helping_.fetch_sub(1, std::memory_order_acq_rel) == 1) helping_.notify_one();
  }
}

}  // namespace shale::cpu
