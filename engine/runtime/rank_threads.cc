#include "engine/runtime/rank_threads.h"

#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace shale {

absl::StatusOr<std::unique_ptr<RankThreads>> RankThreads::Create(int ranks) {
  auto result = absl::WrapUnique(new RankThreads(ranks));
  RankThreads& self = *result;
  self.threads_.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      self.threads_.emplace_back([&self, rank] { self.Loop(rank); });
    } catch (const std::system_error& e) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start a thread for rank ", rank, " of ", ranks, ": ", e.what(),
                       "; raise the limit on threads (ulimit -u) or run fewer ranks in one process"));
    }
  }
  return result;
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
