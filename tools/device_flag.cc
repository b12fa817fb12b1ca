#include "tools/device_flag.h"

#include "absl/strings/str_cat.h"

namespace shale {

absl::StatusOr<BackendFactory> BackendsOn(const std::string& device) {
  if (device.empty()) return CreateBackend;
  if (device != "CPU" && device != "CUDA") {
    return absl::InvalidArgumentError(absl::StrCat("--device: found \"", device, "\"; allowed: CPU, CUDA"));
  }
  return [type = device == "CPU" ? DeviceType::kCpu : DeviceType::kCuda](const Job& job) {
    Job here = job;
    here.runtime.device = type;
    return CreateBackend(here);
  };
}

}  // namespace shale
