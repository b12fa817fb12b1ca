// CpuDevice: the host as a device. Arenas are mapped memory, streams are threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "kernels/device/device.h"

namespace shale {

struct CpuDeviceOptions {
  // If true, streams have no threads: work runs at once in the thread that enqueues it. This serves checks between two
  // instructions and tests of single ops.
  bool synchronous = false;
  int64_t queue_depth = 1024;      // Items that a stream holds before enqueueing blocks.
  int64_t memory_limit_bytes = 0;  // For all live arenas together. 0: the machine's memory.
  int threads = 1;                 // Threads of Arena::MakeResident.
  std::string thread_name_prefix;  // For the streams' threads.
  // Called with the stream's name in every stream's thread before its work; if synchronous, in the thread that calls
  // CreateStream. It may change settings of the thread. May be empty.
  std::function<void(absl::string_view stream)> initialize;
};

// The ranks of a process may share one CpuDevice: a stream of one rank may wait for an event of another.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(CpuDeviceOptions options = {});

  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) override { return Allocate(size_bytes); }
  // Returns a CpuStream.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;

 private:
  const CpuDeviceOptions options_;
  std::atomic<int64_t> allocated_bytes_ = 0;
  std::mutex mutex_;
  std::deque<StreamProgress> progress_;  // For every stream ever made: events may refer to destroyed streams.
};

std::unique_ptr<CpuDevice> CreateCpuDevice(CpuDeviceOptions options = {});

}  // namespace shale
