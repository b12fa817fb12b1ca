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
  // Streams have no threads: work runs at once in the thread that enqueues it. For checks that look between two
  // instructions, and for tests of single ops.
  bool synchronous = false;
  int64_t queue_depth = 1024;      // Items that a stream holds before enqueueing blocks.
  int64_t memory_limit_bytes = 0;  // For all arenas that live together. 0: the machine's memory.
  int threads = 1;                 // That take an arena's pages (Arena::MakeResident).
  std::string thread_name_prefix;  // Of the streams' threads.
  // Runs in every stream's thread before its work (synchronous: in the thread that calls CreateStream), for settings
  // that belong to a thread, such as how many OpenMP may use. Gets the stream's name. May be empty.
  std::function<void(absl::string_view stream)> initialize;
};

// May be shared by the ranks of a process: a stream of one may wait for an event of another.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(CpuDeviceOptions options = {});

  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocatePinned(int64_t size_bytes) override { return Allocate(size_bytes); }
  // The stream is a CpuStream.
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream(absl::string_view name) override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;

 private:
  const CpuDeviceOptions options_;
  std::atomic<int64_t> allocated_bytes_ = 0;
  std::mutex mutex_;
  std::deque<StreamProgress> progress_;  // Of every stream ever made: events may refer to one that is gone.
};

std::unique_ptr<CpuDevice> CreateCpuDevice(CpuDeviceOptions options = {});

}  // namespace shale
