#include "engine/runtime/rank_threads.h"

namespace shale {

RankThreads::RankThreads(int ranks) : results_(ranks) {
  for (int rank = 0; rank < ranks; ++rank) threads_.emplace_back([this, rank] { Loop(rank); });
}

RankThreads::~RankThreads() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status RankThreads::Run(const std::function<absl::Status(int)>& work) {
  std::unique_lock lock(mutex_);
  work_ = &work;
  running_ = static_cast<int>(threads_.size());
  ++round_;
  wake_.notify_all();
  finished_.wait(lock, [&] { return running_ == 0; });
  work_ = nullptr;
  absl::Status aborted;
  for (const absl::Status& status : results_) {
    if (status.ok()) continue;
    if (status.code() != absl::StatusCode::kAborted) return status;
    aborted.Update(status);
  }
  return aborted;
}

void RankThreads::Loop(int rank) {
  int64_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || round_ > done; });
    if (stop_) return;
    done = round_;
    const std::function<absl::Status(int)>& work = *work_;
    lock.unlock();
    absl::Status status = work(rank);
    lock.lock();
    results_[rank] = std::move(status);
    if (--running_ == 0) finished_.notify_all();
  }
}

}  // namespace shale
