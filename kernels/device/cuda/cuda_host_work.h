// CudaHostWork: the work that a CUDA stream runs on the host.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "kernels/device/cuda/cuda_stream.h"

namespace shale {

// Owns the work of one stream, which CUDA knows by an address only. Used by the stream's launching thread, except Call,
// which CUDA's threads call.
//
// CUDA cannot be told that a host function failed. So the first error is kept here, work that comes later is skipped,
// and a StreamGuard reports the error to the stream.
class CudaHostWork {
 public:
  explicit CudaHostWork(std::string stream) : failure_(std::make_shared<Failure>(std::move(stream))) {}

  // Keeps `work` and returns the argument with which Call runs it. If `captured`, a graph may run it again and again,
  // and it is kept as long as this object. Otherwise it is kept until DropFinished.
  void* Add(std::function<absl::Status()> work, bool captured);
  // A host function for CudaRuntime::LaunchHostFunction. Runs the work of `item`, which Add returned.
  static void Call(void* item);
  // Drops all work that was not captured. REQUIRES: the stream has finished it.
  void DropFinished() { once_.clear(); }
  std::shared_ptr<const StreamGuard> guard() const { return failure_; }

 private:
  // The first error of the stream's work.
  class Failure : public StreamGuard {
   public:
    explicit Failure(std::string stream) : stream_(std::move(stream)) {}
    absl::Status status() const override;
    void Run(const std::function<absl::Status()>& work);

   private:
    const std::string stream_;
    // Work that succeeds only reads it, and orders no threads by that.
    std::atomic<bool> failed_ = false;
    mutable std::mutex mutex_;
    absl::Status status_;  // Guarded by mutex_.
  };
  struct Item {
    std::function<absl::Status()> work;
    Failure* failure = nullptr;
  };

  std::shared_ptr<Failure> failure_;
  std::deque<Item> once_, captured_;  // Deques, because items must not move.
};

}  // namespace shale
