// What the handles of StandInRuntime point to.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "kernels/cuda/host/stream.h"
#include "kernels/device/cpu/counter.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "kernels/device/cpu/stream_progress.h"
#include "kernels/device/cuda/runtime.h"

namespace shale::cuda_on_host {

// The base is what a kernel's launch sees.
struct StandInStream : Stream {
  int ordinal = 0;
  CudaStreamPriority priority = CudaStreamPriority::kNormal;
  StreamProgress progress;
  uint64_t recorded = 0;  // Events so far; the launching thread's.
  Counter reached;        // Of these.
  // Its thread. Null when destroyed. What it runs never fails: an error is the device's, and waits are kept to the end.
  std::unique_ptr<CpuStream> work;
};

struct StandInEvent {
  CudaEventKind kind = CudaEventKind::kOrder;
  int ordinal = 0;
  bool destroyed = false;
  // The latest record: reached when the stream's count is `record`. Null: never recorded.
  StandInStream* stream = nullptr;
  uint64_t record = 0;
  std::atomic<int64_t> device_ns = 0;  // Of the device's clock, then. Orders nothing.
};

}  // namespace shale::cuda_on_host
