// StreamProgress: counts the items that a stream has finished, for threads and other streams that wait for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "kernels/device/cpu/counter.h"

namespace shale {

// The number of finished items of one stream, and its first error. The device owns it, so that it outlives events and
// waiting streams in whatever order they are destroyed.
class StreamProgress {
 public:
  // Finish and Fail are called by the thread that runs the stream's items.
  void Finish() { finished_.Advance(); }
  // Notes that the current item has failed. Called before Finish. Keeps the first error only.
  void Fail(absl::Status error) {
    if (failed()) return;
    error_ = std::move(error);
    failed_at_.store(finished_.value() + 1, std::memory_order_release);
  }

  // The following may be called by any thread.
  bool failed() const { return failed_at_.load(std::memory_order_acquire) != kNever; }
  const absl::Status& error() const { return error_; }  // REQUIRES: failed().
  // Blocks until `items` items have finished. Returns how many have.
  uint64_t Await(uint64_t items) const { return finished_.AwaitAtLeast(items); }
  // Returns the error if one of the first `items` items failed. REQUIRES: they have finished.
  absl::Status ErrorOf(uint64_t items) const {
    return failed_at_.load(std::memory_order_acquire) <= items ? error_ : absl::OkStatus();
  }

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  Counter finished_;
  absl::Status error_;  // Written once, before failed_at_.
  std::atomic<uint64_t> failed_at_ = kNever;
};

}  // namespace shale
