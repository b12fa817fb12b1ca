// ProcessInOrder: processes batches with several threads, and takes them in order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/check.h"

namespace shale {

// What the functions of ProcessInOrder do with a batch. Each returns the error that ends the work.
template <class Batch>
struct BatchSteps {
  // Reads the next batch. Returns null at the end.
  std::function<absl::StatusOr<std::unique_ptr<Batch>>()> read;
  // Works on a batch, on thread number 0 to threads - 1. Batches are processed concurrently.
  std::function<absl::Status(int thread, Batch& batch)> process;
  // Takes a batch that was processed.
  std::function<absl::Status(Batch& batch)> take;
};

// See ProcessInOrder. Used once.
template <class Batch>
class InOrder {
 public:
  InOrder(int most_batches, const BatchSteps<Batch>& steps) : most_batches_(most_batches), steps_(steps) {}

  absl::Status Run(int threads) {
    std::vector<std::thread> others;
    try {
      for (int i = 1; i < threads; ++i) others.emplace_back([this, i] { Help(i); });
    } catch (const std::system_error&) {
      // The system refuses more threads. Those that run, at least the calling one, do the work.
    }
    absl::Status status;
    while (status.ok() && (more_ || !all_.empty())) status = Step();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
      work_came_.notify_all();
    }
    for (std::thread& other : others) other.join();
    return status;
  }

 private:
  struct Entry {
    std::unique_ptr<Batch> batch;
    absl::Status status;
    bool done = false;
  };

  void Process(int thread, Entry& entry) {
    entry.status = steps_.process(thread, *entry.batch);
    const std::lock_guard<std::mutex> lock(mutex_);
    entry.done = true;
    work_done_.notify_one();
  }

  // What each other thread does.
  void Help(int thread) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_came_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (ends_) return;
      const std::shared_ptr<Entry> entry = queue_.front();
      queue_.pop_front();
      lock.unlock();
      Process(thread, *entry);
      lock.lock();
    }
  }

  // Does one thing on the calling thread: takes a batch that is due, reads one, processes one, or waits.
  absl::Status Step() {
    std::shared_ptr<Entry> finished, own;
    bool reads = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!all_.empty() && all_.front()->done) {
        finished = all_.front();
        all_.pop_front();
      } else if (more_ && static_cast<int>(all_.size()) < most_batches_) {
        reads = true;
      } else if (!queue_.empty()) {
        own = queue_.front();
        queue_.pop_front();
      } else {
        work_done_.wait(lock, [&] { return all_.front()->done; });
      }
    }
    if (finished != nullptr) {
      SHALE_RETURN_IF_ERROR(finished->status);
      return steps_.take(*finished->batch);
    }
    if (own != nullptr) Process(0, *own);
    if (reads) Read();
    return absl::OkStatus();
  }

  void Read() {
    absl::StatusOr<std::unique_ptr<Batch>> batch = steps_.read();
    if (batch.ok() && *batch == nullptr) {
      more_ = false;
      return;
    }
    // An error of `read` has its place in the order, behind the batches before.
    more_ = batch.ok();
    auto entry = std::make_shared<Entry>();
    entry->status = batch.status();
    entry->done = !batch.ok();
    if (batch.ok()) entry->batch = *std::move(batch);
    const std::lock_guard<std::mutex> lock(mutex_);
    all_.push_back(entry);
    if (!entry->done) queue_.push_back(entry);
    work_came_.notify_one();
  }

  const int most_batches_;
  const BatchSteps<Batch>& steps_;
  bool more_ = true;  // `read` has not ended. Of the calling thread alone.
  std::mutex mutex_;
  std::condition_variable work_came_, work_done_;
  std::deque<std::shared_ptr<Entry>> all_;    // In order, until they are taken.
  std::deque<std::shared_ptr<Entry>> queue_;  // Those that no thread has begun.
  bool ends_ = false;
};

// Runs `read` and `take` on the calling thread, which processes batches too when it has nothing else to do, and
// `process` on threads - 1 others as well. `take` gets the batches in the order of `read`, up to the first that failed;
// its error is returned. At most `most_batches` batches exist at a time.
template <class Batch>
absl::Status ProcessInOrder(int threads, int most_batches, const BatchSteps<Batch>& steps) {
  return InOrder<Batch>(most_batches, steps).Run(threads);
}

}  // namespace shale
