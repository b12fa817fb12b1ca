// One thread for each rank of a process, kept from step to step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

class RankThreads {
 public:
  // Returns ResourceExhausted if the system refuses to start a thread.
  static absl::StatusOr<std::unique_ptr<RankThreads>> Create(int ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;

  // Calls work(rank) in every rank's thread and waits for all of them. Returns the first error in rank order that is
  // not Aborted, and otherwise the first Aborted one: Aborted only repeats the error of a peer. One caller at a time.
  // `work` must not throw.
  absl::Status Run(const std::function<absl::Status(int)>& work);

 private:
  explicit RankThreads(int ranks) : results_(ranks) {}
  void Loop(int rank);

  std::mutex mutex_;
  std::condition_variable wake_, finished_;
  // mutex_ guards the members below, except threads_.
  const std::function<absl::Status(int)>* work_ = nullptr;
  int64_t round_ = 0;
  int running_ = 0;
  bool stop_ = false;
  std::vector<absl::Status> results_;
  std::vector<std::thread> threads_;
};

}  // namespace shale
