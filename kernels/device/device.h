// What an executor needs of a device: an arena of memory, streams, events, graphs.
//
// One host thread per rank enqueues work on the rank's streams; each stream runs its work in FIFO order, streams run
// beside one another. Errors of enqueued work are sticky: the stream skips what follows and Synchronize returns the
// first one. A stream that waits for a failed one fails with the same error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/device/memory_meter.h"

namespace shale {

// A contiguous piece of memory, zeroed, aligned to at least 4096 bytes. Freed with the object.
class Arena {
 public:
  virtual ~Arena() = default;
  std::byte* base() const { return base_; }
  int64_t size_bytes() const { return size_bytes_; }

  struct Range {
    int64_t begin_bytes = 0, end_bytes = 0;
  };
  // Takes from the machine, with several threads, the pages of these ranges, which must not overlap, where pages are
  // otherwise taken one by one as they are first touched. Contents stay. Only advice: no error.
  virtual void MakeResident(absl::Span<const Range> ranges) {}

 protected:
  std::byte* base_ = nullptr;
  int64_t size_bytes_ = 0;
};

// A point in a stream's work. May be recorded again; a Wait refers to the latest Record that was enqueued before it,
// and an event that was never recorded counts as reached.
class Event {
 public:
  virtual ~Event() = default;
};

class Stream;

// A copy of a graph, whose two ends may be changed. Nothing if it was of no bytes.
struct CapturedCopy {
  void* node = nullptr;
  int64_t size_bytes = 0;
};

// What was captured on streams (see Stream::BeginCapture), as one piece of work, to be launched any number of times. It
// runs on no stream of its capture, in the order that these gave it. Each launch comes after the one before. What it
// reads and writes must outlive it; a destroyed graph still finishes its launches.
class Graph {
 public:
  virtual ~Graph() = default;
  // Only enqueues; call from the rank's launching thread.
  virtual absl::Status Launch(Stream& stream) = 0;
  // What is launched from now on copies between these two, which are of the same kinds of memory as those before.
  virtual absl::Status SetCopy(const CapturedCopy& copy, void* to, const void* from) = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // The following only enqueue; call from the rank's launching thread.
  virtual absl::Status Record(Event& event) = 0;
  virtual absl::Status Wait(const Event& event) = 0;
  // Copies between pinned host memory and device or within the device. `from` must stay valid until the stream has
  // passed it.
  absl::Status Copy(void* to, const void* from, int64_t size_bytes) {
    Meter(to, size_bytes);
    Meter(from, size_bytes);
    return EnqueueCopy(to, from, size_bytes);
  }

  // Sets *nanoseconds to the time on the host's steady clock when the stream gets here. Valid after Synchronize.
  virtual absl::Status RecordTime(int64_t* nanoseconds) = 0;

  // Notes that all before it has finished. Where work fails late, and takes everything after it along, reached_mark
  // tells how far the stream came.
  virtual absl::Status Mark(uint32_t mark) { return absl::OkStatus(); }
  // The last mark that was reached, also after a failure; 0: none was. Nothing where errors name their work themselves.
  virtual std::optional<uint32_t> reached_mark() const { return std::nullopt; }

  // Waits until the stream is empty; the first error of its work, if any.
  virtual absl::Status Synchronize() = 0;

  // As Copy and Synchronize, which a device may do with less. `from` and `to` are the caller's again.
  absl::Status CopyAndWait(void* to, const void* from, int64_t size_bytes) {
    Meter(to, size_bytes);
    Meter(from, size_bytes);
    return FinishCopy(to, from, size_bytes);
  }

  // Until EndCapture, what is enqueued is captured and does not run: on this stream, and on others from where they wait
  // for an event that was recorded in the capture. None of them may wait for an event of elsewhere, be synchronized or
  // record a time; the thread may not allocate or free; and at the end this stream must have waited for the others.
  // See Device::CanCapture.
  virtual absl::Status BeginCapture() { return CannotCapture(); }
  // Also ends a capture that has failed, with its error; the streams' errors stay.
  virtual absl::StatusOr<std::unique_ptr<Graph>> EndCapture() { return CannotCapture(); }
  // As Copy, of a stream that is being captured. What is returned is the graph's.
  virtual absl::StatusOr<CapturedCopy> CaptureCopy(void* to, const void* from, int64_t size_bytes) {
    return CannotCapture();
  }

  // Records what launches and copies touch, for the measured peak. Borrowed; null: nothing is recorded.
  void set_meter(MemoryMeter* meter) { meter_ = meter; }
  void Meter(const void* address, int64_t size_bytes) {
    if (meter_ != nullptr) meter_->Touch(address, size_bytes);
  }

 protected:
  virtual absl::Status EnqueueCopy(void* to, const void* from, int64_t size_bytes) = 0;
  virtual absl::Status FinishCopy(void* to, const void* from, int64_t size_bytes) {
    absl::Status status = EnqueueCopy(to, from, size_bytes);
    status.Update(Synchronize());
    return status;
  }

 private:
  static absl::Status CannotCapture() { return absl::UnimplementedError("streams of this device cannot be captured"); }

  MemoryMeter* meter_ = nullptr;
};

// Makes arenas, streams and events. Thread-safe. Outlives what it makes.
class Device {
 public:
  virtual ~Device() = default;
  virtual absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) = 0;
  // Host memory, which streams copy from and to without holding up the thread that enqueues the copy. Other host memory
  // they may refuse to copy.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Whether work of streams can be captured as graphs.
  virtual bool CanCapture() const { return false; }
};

}  // namespace shale
