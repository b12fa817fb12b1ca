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

// Returns when `value` is not `old`. The thread that changes it must notify.
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

// Sets `value` and wakes the threads that wait for it. Sequentially consistent, because the standard library looks for
// sleeping threads after the store.
void Change(std::atomic<uint32_t>& value, uint32_t to) {
  value.store(to);
  value.notify_all();
}

}  // namespace

Team::~Team() {
  if (started_) End(threads_ - 1);
}

absl::Status Team::Start() {
  if (threads_ == 1 || started_) return absl::OkStatus();
  const std::lock_guard lock(starting_);
  if (started_) return absl::OkStatus();
  helpers_ = std::make_unique<Helper[]>(threads_ - 1);
  for (int i = 1; i < threads_; ++i) {
    try {
      helper(i).thread = std::thread([this, i] { Help(i); });
    } catch (const std::system_error& error) {
      End(i - 1);
      return absl::ResourceExhaustedError(absl::StrCat("cannot start thread ", i + 1, " of the ", threads_,
                                                       " compute threads of a rank: ", error.what(),
                                                       "; raise the limit on threads (ulimit -u) or lower "
                                                       "runtime.threads_per_rank"));
    }
  }
  started_ = true;
  return absl::OkStatus();
}

// Ends the first `helpers` helpers.
void Team::End(int helpers) {
  for (int i = 1; i <= helpers; ++i) Change(helper(i).state, kEnds);
  for (int i = 1; i <= helpers; ++i) helper(i).thread.join();
  helpers_ = nullptr;
}

void Team::RunErased(int count, Call call, const void* work) {
  const uint32_t number = next_.fetch_add(1);
  for (uint32_t now; (now = now_.load(std::memory_order_acquire)) != number;) AwaitChange(now_, now);
  const int helped = started_ ? count : 1;
  call_ = call;
  work_ = work;
  for (int i = 1; i < helped; ++i) Change(helper(i).state, kOffered);
  call(work, 0);
  for (int i = 1; i < count; ++i) {
    uint32_t offered = kOffered;
    if (i >= helped || helper(i).state.compare_exchange_strong(offered, kIdle)) call(work, i);
  }
  for (int i = 1; i < helped; ++i) AwaitChange(helper(i).state, kBusy);
  Change(now_, number + 1);
}

void Team::Help(int i) {
  std::atomic<uint32_t>& state = helper(i).state;
  while (true) {
    AwaitChange(state, kIdle);
    uint32_t found = kOffered;
    if (state.compare_exchange_strong(found, kBusy)) {
      call_(work_, i);
      Change(state, kIdle);
    } else if (found == kEnds) {
      return;
    }
  }
}

}  // namespace shale::cpu
