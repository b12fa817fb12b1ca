// What the handles of StandInRuntime point to.
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
#include "kernels/cuda/host/stand_in_memory.h"
#include "kernels/cuda/host/stream.h"
#include "kernels/device/cpu/counter.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "kernels/device/cpu/stream_progress.h"
#include "kernels/device/cuda/runtime.h"

namespace shale::cuda_on_host {

struct StandInCapture;

// The base is what a kernel's launch sees.
struct StandInStream : Stream {
  int ordinal = 0;
  CudaStreamPriority priority = CudaStreamPriority::kNormal;
  StreamProgress progress;
  uint64_t recorded = 0;              // Events so far; the launching thread's.
  Counter reached;                    // Of these.
  StandInCapture* capture = nullptr;  // Not null: what comes is captured.
  // Its thread. Null when destroyed. What it runs never fails: an error is the device's, and waits are kept to the end.
  std::shared_ptr<CpuStream> work;  // Null: destroyed.
};

inline StandInStream& AsStream(cuda::StreamHandle handle) {
  return *static_cast<StandInStream*>(static_cast<Stream*>(handle));
}

struct StandInEvent {
  CudaEventKind kind = CudaEventKind::kOrder;
  int ordinal = 0;
  bool destroyed = false;
  // The latest record: reached when the stream's count is `record`. Null: never recorded.
  StandInStream* stream = nullptr;
  uint64_t record = 0;
  // Not 0: the latest record was captured, as this step of the capture of this number.
  uint64_t capture = 0;
  int captured_step = 0;
  std::atomic<int64_t> device_ns = 0;  // Of the device's clock, then. Orders nothing.
};

// What a stream is given to run.
struct StandInWork {
  std::function<absl::Status()> run;
  std::vector<Allocation*> uses;
  bool kernel = false;
  // Of copies, to tell what may take their place.
  const Allocation* to = nullptr;
  const Allocation* from = nullptr;
  int64_t copied_bytes = 0;
};

// Work, or a record of an event, or a wait for one: of a stream of the capture.
struct StandInStep {
  enum class Kind : uint8_t { kWork, kRecord, kWait } kind = Kind::kWork;
  int stream = 0;  // Of those that take part.
  StandInWork work;
  int record = -1;        // The step that a wait waits for.
  std::vector<int> seen;  // A record's: by stream, how many steps of the capture come before it on account of that one.
};

// Steps in the order in which they were captured, on streams of which the first one began it.
struct StandInCapture {
  uint64_t number = 0;  // Of all captures, from 1.
  std::thread::id thread;
  bool broken = false;
  std::vector<StandInStream*> streams;
  // By stream: what comes before its next step, as in StandInStep::seen; and 1 + the step of its last work.
  std::vector<std::vector<int>> seen;
  std::vector<int> last_work;
  std::deque<StandInStep> steps;

  // Takes a stream in, if it does not take part.
  void Join(StandInStream& stream);
  // Appends a step of a stream that takes part; its number.
  int Add(StandInStream& stream, StandInStep step);
  // The first stream whose work the one that began the capture has not waited for; -1: none.
  int Unjoined() const;
};

// Launched by running the steps again: those of the capture's first stream where it is launched, the others' on streams
// of its own. Only what the steps say orders them, so that a wait that is missing is a data race here too.
struct StandInGraph {
  int ordinal = 0;
  bool destroyed = false;
  std::deque<StandInStep> steps;
  std::deque<StandInStream> side_streams;
  // The end of the last launch; null: there was none.
  StandInStream* launched_on = nullptr;
  uint64_t launch_record = 0;
};

}  // namespace shale::cuda_on_host
