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
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace shale::cpu {

// The calling thread of an op and helpers, which live as long as the team. Any thread may call Run and RunParts; calls
// run one after another. Work must not call the team that runs it.
class Team {
 public:
  // REQUIRES: threads >= 1.
  explicit Team(int threads) : threads_(threads) {}
  Team(const Team&) = delete;
  ~Team();

  int threads() const { return threads_; }

  // Starts the helpers, unless they run. Returns ResourceExhausted if the system refuses a thread. Until this has
  // returned OK, the calling thread does all the work.
  absl::Status Start();

  // Calls work(i) once for each i in [0, count), where count <= threads(). Each i has a thread of its own, and 0 is the
  // calling thread. Returns when all calls have.
  template <class Work>
  void Run(int count, const Work& work) {
    RunErased(
        count, [](const void* erased, int i) { (*static_cast<const Work*>(erased))(i); }, &work);
  }

  // Calls work(part, i) once for each part in [0, parts), on `count` threads as Run does. A thread that has finished a
  // part takes the next one.
  template <class Work>
  void RunParts(int count, int64_t parts, const Work& work) {
    std::atomic<int64_t> next = 0;
    Run(static_cast<int>(std::min<int64_t>(count, parts)), [&](int i) {
      for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) work(part, i);
    });
  }

 private:
  using Call = void (*)(const void* work, int i);

  void RunErased(int count, Call call, const void* work);
  void Help(int i, uint32_t seen);
  void Join();

  const int threads_;
  std::atomic<bool> started_ = false;  // The helpers run.
  std::mutex mutex_;                   // Held by the thread that runs work. Guards helpers_.
  std::vector<std::thread> helpers_;

  // The work of the current call. Written before round_, and read by helpers after it.
  int count_ = 0;
  Call call_ = nullptr;
  const void* work_ = nullptr;
  bool ends_ = false;  // Helpers end.
  // On cache lines of their own, because threads wait for them.
  alignas(64) std::atomic<uint32_t> round_ = 0;    // Changes with each call.
  alignas(64) std::atomic<uint32_t> helping_ = 0;  // Helpers that have not finished the call.
};

}  // namespace shale::cpu
