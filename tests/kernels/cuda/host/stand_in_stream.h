// The objects that the handles of StandInRuntime point to.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/cpu/counter.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "kernels/device/cpu/stream_progress.h"
#include "kernels/device/cuda/runtime.h"
#include "tests/kernels/cuda/host/stand_in_memory.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::cuda_on_host {

struct StandInCapture;

// A stream. A kernel launch sees its base, Stream.
struct StandInStream : Stream {
  int ordinal = 0;
  CudaStreamPriority priority = CudaStreamPriority::kNormal;
  StreamProgress progress;
  uint64_t recorded = 0;              // Records of events enqueued so far. Used by the launching thread only.
  Counter reached;                    // How many of these records the stream has reached.
  StandInCapture* capture = nullptr;  // If not null, new work is captured.
  // The stream's thread. Its work never fails: an error belongs to the device, and waits are kept to the end.
  std::shared_ptr<CpuStream> work;  // Null once the stream is destroyed.
};

inline StandInStream& AsStream(cuda::StreamHandle handle) {
  return *static_cast<StandInStream*>(static_cast<Stream*>(handle));
}

struct StandInEvent {
  CudaEventKind kind = CudaEventKind::kOrder;
  int ordinal = 0;
  bool destroyed = false;
  // The latest record is reached when stream->reached is `record`. `stream` is null if the event was never recorded.
  StandInStream* stream = nullptr;
  uint64_t record = 0;
  // If not 0, the latest record was captured: it is step `captured_step` of the capture with this number.
  uint64_t capture = 0;
  int captured_step = 0;
  std::atomic<int64_t> device_ns = 0;  // The device's clock at the latest record. Orders nothing.
};

// A piece of work of a stream.
struct StandInWork {
  std::function<absl::Status()> run;
  std::vector<Allocation*> uses;  // The memory that it reads or writes.
  bool kernel = false;
  // Set for copies, to check what SetGraphCopy may replace them with.
  const Allocation* to = nullptr;
  const Allocation* from = nullptr;
  int64_t copied_bytes = 0;
};

// One step of a capture: work, a record of an event, or a wait for one.
struct StandInStep {
  enum class Kind : uint8_t { kWork, kRecord, kWait } kind = Kind::kWork;
  int stream = 0;  // Index into StandInCapture::streams.
  StandInWork work;
  int record = -1;        // For a wait: the step that it waits for.
  std::vector<int> seen;  // For a record, by stream: the stream's steps with smaller numbers come before the record.
};

// A capture that has not ended: its steps in the order in which they were captured.
struct StandInCapture {
  uint64_t number = 0;  // Among all captures of the runtime, from 1.
  std::thread::id thread;
  bool broken = false;
  std::vector<StandInStream*> streams;  // The first one began the capture.
  // By stream: what comes before its next step, as in StandInStep::seen; and 1 + the number of its last step of work.
  std::vector<std::vector<int>> seen;
  std::vector<int> last_work;
  std::deque<StandInStep> steps;

  // Adds a stream to the capture, unless it takes part already.
  void Join(StandInStream& stream);
  // Appends a step of a stream that takes part. Returns the number of the step.
  int Add(StandInStream& stream, StandInStep step);
  // Returns the first stream with work that the stream which began the capture has not waited for, or -1.
  int Unjoined() const;
};

// A captured graph. A launch runs the steps again: those of the capture's first stream on the stream of the launch, the
// others on streams that the graph owns. Only the captured records and waits order them, so that a missing wait is a
// data race here too.
struct StandInGraph {
  int ordinal = 0;
  bool destroyed = false;
  CudaStreamPriority priority = CudaStreamPriority::kNormal;  // That of the capture's first stream.
  std::deque<StandInStep> steps;
  std::deque<StandInStream> side_streams;  // Each has the priority of its stream in the capture.
  // The end of the last launch. `launched_on` is null before the first launch.
  StandInStream* launched_on = nullptr;
  uint64_t launch_record = 0;
};

}  // namespace shale::cuda_on_host
