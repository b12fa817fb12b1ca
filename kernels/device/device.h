// Device: the interface between an executor and a device. It provides arenas of memory, streams, events and graphs.
//
// One host thread per rank enqueues work on the rank's streams. Each stream runs its work in FIFO order; different
// streams run concurrently. Errors of enqueued work are sticky: the stream skips the work that follows, and Synchronize
// returns the first error. A stream that waits for a failed stream fails with the same error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/device/memory_meter.h"
#include "kernels/element_range.h"

namespace shale {

// A contiguous piece of memory, aligned to at least 4096 bytes and zeroed at first. The destructor frees the memory.
class Arena {
 public:
  virtual ~Arena() = default;
  std::byte* base() const { return base_; }
  int64_t size_bytes() const { return size_bytes_; }

  // Makes the pages of these ranges resident, with several threads. Without this call, a device may take pages from the
  // system one by one, when they are first touched. The ranges must not overlap. Keeps the contents. This is only
  // advice and never fails.
  virtual void MakeResident(absl::Span<const ByteRange> ranges) {}

 protected:
  std::byte* base_ = nullptr;
  int64_t size_bytes_ = 0;
};

// A point in a stream's work. May be recorded any number of times: a Wait refers to the latest Record that was enqueued
// before it. An event that was never recorded counts as reached.
class Event {
 public:
  virtual ~Event() = default;
};

class Stream;

// A captured copy, whose source and destination may be changed (Graph::SetCopy). `node` is null if it copies no bytes.
struct CapturedCopy {
  void* node = nullptr;
  int64_t size_bytes = 0;
};

// The work that was captured on streams (see Stream::BeginCapture), as one unit that can be launched any number of
// times. A graph does not run on the streams of its capture but keeps the order that they gave its work. Each launch
// starts after the previous one has finished. The memory that the work uses must outlive the graph. A destroyed graph
// still finishes its launches.
class Graph {
 public:
  virtual ~Graph() = default;
  // Enqueues one launch on `stream`. Only the rank's launching thread may call it.
  virtual absl::Status Launch(Stream& stream) = 0;
  // Changes the source and the destination of a captured copy for all later launches. Each must be in the same kind of
  // memory as before.
  virtual absl::Status SetCopy(const CapturedCopy& copy, void* to, const void* from) = 0;
};

// A FIFO of work on a device. Only the rank's launching thread may call it.
class Stream {
 public:
  virtual ~Stream() = default;

  // Record, Wait, Copy, RunOnHost, RecordTime and Mark only enqueue.
  virtual absl::Status Record(Event& event) = 0;
  virtual absl::Status Wait(const Event& event) = 0;
  // Copies between pinned host memory and the device, or within the device. `from` must stay valid until the stream has
  // finished the copy.
  absl::Status Copy(void* to, const void* from, int64_t size_bytes) {
    Meter(to, size_bytes);
    Meter(from, size_bytes);
    return EnqueueCopy(to, from, size_bytes);
  }

  // Runs `work` on a thread of the host, between the stream's earlier and later work. `work` may use host memory only
  // and must not call the device. If it returns an error or throws an exception, that is an error of the stream: work
  // on the host that the stream gets later is skipped, and Synchronize returns the error. What `work` refers to must
  // stay valid until the stream has finished it. Captured work must stay valid as long as its graph, which must not be
  // launched after the stream is destroyed.
  virtual absl::Status RunOnHost(std::function<absl::Status()> work) = 0;

  // Sets *nanoseconds to the time, on the host's steady clock, at which the stream gets here. Valid after Synchronize.
  virtual absl::Status RecordTime(int64_t* nanoseconds) = 0;

  // Notes `mark` when all earlier work has finished. Some devices report the failure of work late, and fail all later
  // work too. After a failure there, reached_mark tells how far the stream came.
  virtual absl::Status Mark(uint32_t mark) { return absl::OkStatus(); }
  // Returns the last mark that was reached, also after a failure, or 0 if none was. Returns nullopt if the stream keeps
  // no marks.
  virtual std::optional<uint32_t> reached_mark() const { return std::nullopt; }

  // Waits until the stream has finished all its work. Returns the first error of that work, if any.
  virtual absl::Status Synchronize() = 0;

  // Equivalent to Copy and Synchronize, but may cost less. On return the caller may use `from` and `to` again.
  absl::Status CopyAndWait(void* to, const void* from, int64_t size_bytes) {
    Meter(to, size_bytes);
    Meter(from, size_bytes);
    return FinishCopy(to, from, size_bytes);
  }

  // Begins a capture. Until EndCapture, work that is enqueued on this stream is captured and does not run. Another
  // stream joins the capture when it waits for an event that was recorded in the capture. None of these streams may
  // wait for an event recorded elsewhere, be synchronized or record a time, and the thread may not allocate or free
  // memory. Before EndCapture this stream must have waited for the others. See Device::CanCapture.
  virtual absl::Status BeginCapture() { return CannotCapture(); }
  // Ends the capture and returns its graph. If the capture has failed, ends it too and returns its error. The errors of
  // the streams stay.
  virtual absl::StatusOr<std::unique_ptr<Graph>> EndCapture() { return CannotCapture(); }
  // Like Copy, on a stream that is being captured. The result is valid as long as the graph.
  virtual absl::StatusOr<CapturedCopy> CaptureCopy(void* to, const void* from, int64_t size_bytes) {
    return CannotCapture();
  }

  // Sets the meter that notes the memory which launches and copies access. Borrowed; null switches it off.
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

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// Creates arenas, streams and events, all of which it must outlive. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) = 0;
  // Allocates host memory that streams copy from and to without blocking the thread that enqueues the copy. Streams may
  // refuse to copy other host memory.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Returns how much memory the device has, and how much of it nobody has taken, also no other program. Returns
  // Unimplemented if the device uses the host's memory.
  virtual absl::StatusOr<DeviceMemory> Memory() const {
    return absl::UnimplementedError("this device has no memory of its own");
  }
  // Returns whether work of streams can be captured as graphs.
  virtual bool CanCapture() const { return false; }
};

}  // namespace shale
