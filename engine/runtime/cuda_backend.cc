#include "engine/runtime/cuda_backend.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device/cuda/cuda_device.h"
#include "sharding/comm/stream_ordered.h"

namespace shale {
namespace {

// A device and the runtime that it borrows.
struct OwnedDevice {
  std::shared_ptr<CudaRuntime> runtime;
  std::unique_ptr<CudaDevice> device;
};

absl::Status SumOnStream(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                         Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(stream));
  return cuda_stream->Enqueue(
      [&](cuda::StreamHandle handle) { return cuda::SumRanks(dtype, inputs, out, elements, handle); });
}

class CudaBackend : public Backend {
 public:
  CudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options)
      : runtime_(std::move(runtime)), options_(std::move(options)) {}

  std::unique_ptr<Ops> CreateOps() const override {
    return CreateCudaOps({.products = options_.create_products(),
                          .attention = options_.create_attention ? options_.create_attention() : nullptr});
  }

  absl::StatusOr<std::vector<std::shared_ptr<Device>>> CreateDevices(int ranks, bool synchronous) const override {
    SHALE_ASSIGN_OR_RETURN(const int found, runtime_->DeviceCount());
    const int wanted = (ranks + options_.ranks_per_device - 1) / options_.ranks_per_device;
    if (wanted > found) {
      return absl::FailedPreconditionError(
          absl::StrCat(ranks, " ranks with ", options_.ranks_per_device, " on a GPU want ", wanted, " GPUs; found ",
                       found, ". Run fewer ranks (sharding.ranks), or more on each GPU (runtime.ranks_per_device)"));
    }
    std::vector<std::shared_ptr<Device>> devices;
    for (int ordinal = 0; ordinal < wanted; ++ordinal) {
      auto owned = std::make_shared<OwnedDevice>();
      owned->runtime = runtime_;
      const CudaDeviceOptions device_options{.ordinal = ordinal, .synchronous = synchronous, .marks = true};
      SHALE_ASSIGN_OR_RETURN(owned->device, CudaDevice::Create(*runtime_, device_options));
      SHALE_RETURN_IF_ERROR(runtime_->SetDevice(ordinal));
      for (int peer = 0; peer < wanted; ++peer) {
        if (peer != ordinal) SHALE_RETURN_IF_ERROR(runtime_->EnablePeerAccess(peer));
      }
      const std::shared_ptr<Device> device(owned, owned->device.get());
      for (int i = 0; i < options_.ranks_per_device && std::ssize(devices) < ranks; ++i) devices.push_back(device);
    }
    return devices;
  }

  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateGroup(
      const std::vector<std::shared_ptr<Device>>& devices) const override {
    return CreateStreamOrderedGroup(devices, {.sum_ranks = SumOnStream});
  }

 private:
  const std::shared_ptr<CudaRuntime> runtime_;
  const CudaBackendOptions options_;
};

}  // namespace

std::unique_ptr<Backend> CreateCudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options) {
  SHALE_CHECK(options.create_products != nullptr && options.ranks_per_device >= 1);
  return std::make_unique<CudaBackend>(std::move(runtime), std::move(options));
}

}  // namespace shale
