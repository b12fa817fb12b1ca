// CpuStream: a FIFO of closures with a thread that runs them.
//
// A ring of fixed depth holds the enqueued work, so that memory does not grow however far the launching thread runs
// ahead. When the ring is full, enqueueing blocks until half of it is free. That cannot deadlock as long as waits refer
// to records enqueued before them (Event promises it) and all ranks enqueue their collectives in the same order: the
// first unfinished instruction of the program, over all ranks, then waits for nothing that has yet to be enqueued.
//
// Errors. The first error of a stream stays. Later work is destroyed without being run and counts as finished, and
// Enqueue returns the error as soon as it is known. A stream that waits for a record made at or after the failure fails
// with the same error. Waits themselves are never skipped, so that the order of streams holds to the end. An exception
// that leaves a closure is an error.
//
// A synchronous stream has no thread: work runs at once in the calling thread, and Enqueue returns its error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device/cpu/counter.h"
#include "kernels/device/cpu/stream_progress.h"
#include "kernels/device/device.h"

namespace shale {

class CpuEvent : public Event {
 private:
  friend class CpuStream;
  const StreamProgress* progress_ = nullptr;  // The stream that recorded it last; null: never recorded.
  uint64_t items_ = 0;                        // Reached when that stream has finished this many items.
};

// Only one thread at a time may use a stream: the rank's launching thread.
class CpuStream : public Stream {
 public:
  struct Options {
    std::string name;         // For error messages.
    std::string thread_name;  // For debuggers and top; cut to 15 bytes.
    bool synchronous = false;
    int64_t queue_depth = 1024;        // At least 1.
    std::function<void()> initialize;  // Runs as the stream's first work. May be empty.
  };
  // Borrows `progress`, which no other stream uses. Returns ResourceExhausted if the machine refuses another thread.
  static absl::StatusOr<std::unique_ptr<CpuStream>> Create(Options options, StreamProgress& progress);
  // Returns `stream` as a CpuStream, or InvalidArgument if it belongs to another kind of device.
  static absl::StatusOr<CpuStream*> From(Stream& stream);

  // Finishes everything that was enqueued.
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  // Runs `work` after all work enqueued before it, and destroys it before anything that waits for it continues.
  // Whatever `work` refers to must stay valid until then.
  absl::Status Enqueue(std::function<absl::Status()> work);

  absl::Status Record(Event& event) override;
  absl::Status Wait(const Event& event) override;
  // Returns how long the stream has waited so far for work of other streams (Wait), including all that ended before the
  // last Synchronize. 0 if the stream is synchronous.
  int64_t blocked_ns() const { return blocked_ns_.load(std::memory_order_relaxed); }
  // Equivalent to Enqueue.
  absl::Status RunOnHost(std::function<absl::Status()> work) override { return Enqueue(std::move(work)); }
  absl::Status RecordTime(int64_t* nanoseconds) override;
  absl::Status Synchronize() override;

 protected:
  absl::Status EnqueueCopy(void* to, const void* from, int64_t size_bytes) override;
  // Waits for the stream, then copies in the calling thread: handing over a copy to the stream's thread costs as much
  // as a small copy.
  absl::Status FinishCopy(void* to, const void* from, int64_t size_bytes) override;

 private:
  // Work, a wait, or (if neither is set) the end of the thread.
  struct Item {
    std::function<absl::Status()> work;
    const StreamProgress* awaited = nullptr;
    uint64_t awaited_items = 0;
  };

  CpuStream(Options options, StreamProgress& progress) : options_(std::move(options)), progress_(progress) {}
  void Push(Item item);
  void Loop();
  void Run(Item item);

  const Options options_;
  StreamProgress& progress_;
  uint64_t enqueued_ = 0;                // Items so far. Used by the launching thread only, like known_finished_.
  uint64_t known_finished_ = 0;          // At least this many have finished. Reading the true count at every Push would
                                         // order streams by accident.
  std::atomic<int64_t> blocked_ns_ = 0;  // Written by the thread, before the wait counts as finished.
  Counter published_;  // Items that the thread may take. Slot i % depth holds item i until it is finished.
  std::vector<Item> ring_;
  std::thread thread_;
};

}  // namespace shale
