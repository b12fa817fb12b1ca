#include "kernels/device/cpu/cpu_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_arena.h"
#include "kernels/device/cpu/physical_memory.h"

namespace shale {

CpuDevice::CpuDevice(CpuDeviceOptions options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<Arena>> CpuDevice::Allocate(int64_t size_bytes) {
  const int64_t limit = options_.memory_limit_bytes > 0 ? options_.memory_limit_bytes : PhysicalMemoryBytes();
  return CpuArena::Create(size_bytes, limit, allocated_bytes_, options_.threads);
}

absl::StatusOr<std::unique_ptr<Stream>> CpuDevice::CreateStream(absl::string_view name) {
  CpuStream::Options options{.name = std::string(name),
                             .thread_name = absl::StrCat(options_.thread_name_prefix, name),
                             .synchronous = options_.synchronous,
                             .queue_depth = options_.queue_depth};
  if (options_.initialize) {
    options.initialize = [initialize = options_.initialize, stream = options.name] { initialize(stream); };
  }
  StreamProgress* progress;
  {
    std::lock_guard lock(mutex_);
    progress = &progress_.emplace_back();
  }
  return CpuStream::Create(std::move(options), *progress);
}

absl::StatusOr<std::unique_ptr<Event>> CpuDevice::CreateEvent() { return std::make_unique<CpuEvent>(); }

std::unique_ptr<CpuDevice> CreateCpuDevice(CpuDeviceOptions options) {
  return std::make_unique<CpuDevice>(std::move(options));
}

}  // namespace shale
