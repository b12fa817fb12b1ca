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

// Runs `read` and `take` on the calling thread, which processes batches too when it has nothing else to do, and
// `process` on threads - 1 others as well. `take` gets the batches in the order of `read`, up to the first that failed;
// its error is returned. At most `most_batches` batches exist at a time.
template <class Batch>
absl::Status ProcessInOrder(int threads, int most_batches, const BatchSteps<Batch>& steps) {
  struct Entry {
    std::unique_ptr<Batch> batch;
    absl::Status status;
    bool done = false;
  };
  std::mutex mutex;
  std::condition_variable work_came, work_done;
  std::deque<std::shared_ptr<Entry>> all;    // In order, until they are taken.
  std::deque<std::shared_ptr<Entry>> queue;  // Those that no thread has begun.
  bool ends = false;

  const auto process = [&](int thread, Entry& entry) {
    entry.status = steps.process(thread, *entry.batch);
    const std::lock_guard<std::mutex> lock(mutex);
    entry.done = true;
    work_done.notify_one();
  };
  const auto help = [&](int thread) {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      work_came.wait(lock, [&] { return ends || !queue.empty(); });
      if (ends) return;
      const std::shared_ptr<Entry> entry = queue.front();
      queue.pop_front();
      lock.unlock();
      process(thread, *entry);
      lock.lock();
    }
  };
  std::vector<std::thread> others;
  try {
    for (int i = 1; i < threads; ++i) others.emplace_back(help, i);
  } catch (const std::system_error&) {
    // The system refuses more threads. Those that run, at least the calling one, do the work.
  }

  bool more = true;
  const auto step = [&]() -> absl::Status {
    std::shared_ptr<Entry> finished, own;
    bool reads = false;
    {
      std::unique_lock<std::mutex> lock(mutex);
      if (!all.empty() && all.front()->done) {
        finished = all.front();
        all.pop_front();
      } else if (more && static_cast<int>(all.size()) < most_batches) {
        reads = true;
      } else if (!queue.empty()) {
        own = queue.front();
        queue.pop_front();
      } else {
        work_done.wait(lock, [&] { return all.front()->done; });
      }
    }
    if (finished != nullptr) {
      SHALE_RETURN_IF_ERROR(finished->status);
      return steps.take(*finished->batch);
    }
    if (own != nullptr) process(0, *own);
    if (!reads) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Batch>> batch = steps.read();
    auto entry = std::make_shared<Entry>();
    if (batch.ok() && *batch == nullptr) {
      more = false;
      return absl::OkStatus();
    }
    // An error of `read` has its place in the order, behind the batches before.
    more = batch.ok();
    entry->status = batch.status();
    entry->done = !batch.ok();
    if (batch.ok()) entry->batch = *std::move(batch);
    const std::lock_guard<std::mutex> lock(mutex);
    all.push_back(entry);
    if (!entry->done) queue.push_back(entry);
    work_came.notify_one();
    return absl::OkStatus();
  };
  absl::Status status;
  while (status.ok() && (more || !all.empty())) status = step();
  {
    const std::lock_guard<std::mutex> lock(mutex);
    ends = true;
    work_came.notify_all();
  }
  for (std::thread& other : others) other.join();
  return status;
}

}  // namespace shale
