#include "kernels/device/cuda/cuda_device.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cuda/cuda_arena.h"

namespace shale {

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(CudaRuntime& runtime, const CudaDeviceOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const int devices, runtime.DeviceCount());
  if (options.ordinal < 0 || options.ordinal >= devices) {
    return absl::FailedPreconditionError(
        absl::StrCat("wanted GPU ", options.ordinal, ", found ", devices,
                     " (counted from 0, as CUDA_VISIBLE_DEVICES lets them be seen); run fewer ranks on this host"));
  }
  SHALE_RETURN_IF_ERROR(runtime.SetDevice(options.ordinal));
  std::unique_ptr<CudaDevice> device(new CudaDevice(runtime, options));
  SHALE_ASSIGN_OR_RETURN(device->properties_, runtime.Properties(options.ordinal));
  SHALE_ASSIGN_OR_RETURN(device->clock_, CudaClock::Create(runtime));
  if (options.marks) {
    const absl::Status status = device->TryMark();
    if (!status.ok() && !absl::IsUnimplemented(status)) return status;
    device->why_no_marks_ = std::string(status.message());
  }
  return device;
}

absl::Status CudaDevice::TryMark() {
  SHALE_ASSIGN_OR_RETURN(
      const std::unique_ptr<CudaStream> stream,
      CudaStream::Create(
          runtime_, *clock_,
          {.name = "marks", .ordinal = options_.ordinal, .priority = CudaStreamPriority::kNormal, .marks = true}));
  SHALE_RETURN_IF_ERROR(stream->Mark(0));
  return stream->Synchronize();
}

absl::StatusOr<std::unique_ptr<Arena>> CudaDevice::Allocate(int64_t size_bytes) {
  SHALE_RETURN_IF_ERROR(runtime_.SetDevice(options_.ordinal));
  return CudaArena::Create(runtime_, options_.ordinal, size_bytes, options_.memory);
}

absl::StatusOr<std::unique_ptr<Arena>> CudaDevice::AllocatePinned(int64_t size_bytes) {
  SHALE_RETURN_IF_ERROR(runtime_.SetDevice(options_.ordinal));
  return PinnedArena::Create(runtime_, size_bytes);
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream(absl::string_view name) {
  SHALE_RETURN_IF_ERROR(runtime_.SetDevice(options_.ordinal));
  const bool communicates = name == "gather" || name == "reduce";
  return CudaStream::Create(runtime_, *clock_,
                            {.name = std::string(name),
                             .ordinal = options_.ordinal,
                             .priority = communicates ? CudaStreamPriority::kHighest : CudaStreamPriority::kNormal,
                             .synchronous = options_.synchronous,
                             .marks = options_.marks && why_no_marks_.empty()});
}

absl::StatusOr<DeviceMemory> CudaDevice::Memory() const {
  SHALE_RETURN_IF_ERROR(runtime_.SetDevice(options_.ordinal));
  SHALE_ASSIGN_OR_RETURN(const int64_t free_bytes, runtime_.FreeBytes());
  return DeviceMemory{.free_bytes = free_bytes, .total_bytes = properties_.total_bytes};
}

absl::StatusOr<std::unique_ptr<Event>> CudaDevice::CreateEvent() {
  SHALE_RETURN_IF_ERROR(runtime_.SetDevice(options_.ordinal));
  SHALE_ASSIGN_OR_RETURN(CudaEventHandle event, CudaEventHandle::Create(runtime_, CudaEventKind::kOrder));
  return std::make_unique<CudaEvent>(std::move(event));
}

}  // namespace shale
