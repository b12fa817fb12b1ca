// Team: the threads that divide the work of an op on the CPU.
//
// An op takes from some microseconds to some milliseconds, and the next one follows at once. So threads that wait look
// again and again for 0.1 ms, and then sleep: a thread that sleeps at once costs 0.05 ms for every op, and one that
// never sleeps takes a processor from whoever needs it, which makes matmuls ten times slower if other threads are busy.
// Rejected: OpenMP, whose threads wait as the environment of the process says when it starts (OMP_WAIT_POLICY), and by
// default spin for milliseconds. A library cannot set that for the program that loads it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/status/status.h"

namespace shale::cpu {

// The calling thread of an op and threads() - 1 helpers, which live as long as the team. Any thread may call Run and
// RunParts; calls run one after another, in the order in which they come. Work must not throw, and must not call the
// team that runs it. The destructor ends the helpers; no call may be running.
class Team {
 public:
  // Starts no thread yet, so that a team costs nothing where ops are only planned. REQUIRES: threads >= 1.
  explicit Team(int threads) : threads_(threads) {}
  Team(const Team&) = delete;
  ~Team();

  int threads() const { return threads_; }

  // Starts the helpers, unless they run. Returns ResourceExhausted if the system refuses a thread. Until this has
  // returned OK, the calling thread does all the work. Any thread may call this.
  absl::Status Start();

  // Calls work(i) once for each i in [0, count), where count <= threads(), and returns when all calls have. Calls for
  // different i may run at the same time. The calling thread runs work(0), and then every work(i) that its helper has
  // not begun: whoever shares the processors with other threads does not wait for a helper that gets none.
  template <class Work>
  void Run(int count, const Work& work) {
    if (count == 1) work(0);
    if (count <= 1) return;
    const auto call = [](const void* erased, int i) { (*static_cast<const Work*>(erased))(i); };
    RunErased(count, call, &work);
  }

  // Calls work(part, i) once for each part in [0, parts), from calls for each i in [0, count), as Run does. A thread
  // that has finished a part takes the next one.
  template <class Work>
  void RunParts(int count, int64_t parts, const Work& work) {
    std::atomic<int64_t> next = 0;
    Run(static_cast<int>(std::min<int64_t>(count, parts)), [&](int i) {
      for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) work(part, i);
    });
  }

 private:
  using Call = void (*)(const void* work, int i);

  // The state of a helper. It waits while it is idle; the caller waits while it is busy.
  //
  //          caller             helper
  //   kIdle --------> kOffered --------> kBusy
  //     ^                |                 |
  //     +----------------+-----------------+
  //           caller             helper
  //
  // The destructor turns kIdle into kEnds.
  enum State : uint32_t { kIdle, kOffered, kBusy, kEnds };
  // On cache lines of its own, because threads wait for its state.
  struct alignas(64) Helper {
    std::atomic<uint32_t> state = kIdle;
    std::thread thread;
  };

  Helper& helper(int i) { return helpers_[i - 1]; }  // That of work(i), i >= 1.
  void RunErased(int count, Call call, const void* work);
  void Help(int i);
  void End(int helpers);

  const int threads_;
  std::mutex starting_;
  std::atomic<bool> started_ = false;  // All helpers run.
  std::unique_ptr<Helper[]> helpers_;  // threads_ - 1 of them, while they run.
  // The call that runs. Written before it is offered.
  Call call_ = nullptr;
  const void* work_ = nullptr;
  // Calls take numbers, and one runs when its number is `now_`. Rejected: a mutex, which a stream that calls op after
  // op takes again before another stream that sleeps has woken up.
  std::atomic<uint32_t> next_ = 0, now_ = 0;
};

}  // namespace shale::cpu
