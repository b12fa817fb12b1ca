// Defines CudaDevice for programs that train on a GPU which is not there: the CUDA backend on stand-ins for CUDA, cuDNN
// and NCCL, with matmuls by the reference ops. Processes on one host share the GPU. SHALE_TEST_GPUS (default 1) says
// how many there are, SHALE_TEST_NCCL (default 22809) which version of NCCL.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "engine/run/backends/cuda_backend.h"
#include "engine/run/backends/device_kind.h"
#include "engine/run/backends/nccl_jobs.h"
#include "kernels/check.h"
#include "kernels/cuda/cudnn/cudnn_attention.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tests/sharding/comm/nccl/process_nccl.h"

namespace shale {
namespace {

using cuda_on_host::StandInRuntime;

int NumberOf(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  int number = otherwise;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

// After the last user has finished, ends the program if CUDA was misused.
void CheckAndDelete(StandInRuntime* runtime) {
  for (const std::string& misuse : runtime->misuse()) std::fprintf(stderr, "misuse of CUDA: %s\n", misuse.c_str());
  if (!runtime->misuse().empty()) std::abort();
  delete runtime;
}

absl::StatusOr<std::shared_ptr<NcclApi>> LoadStandIn() {
  static const auto nccl = std::make_shared<ProcessNccl>(NumberOf("SHALE_TEST_NCCL", 22809),
                                                         std::filesystem::temp_directory_path().string());
  return nccl;
}

CudaBackendOptions OptionsOf(const Job& job) {
  CudaBackendOptions options{.ranks_per_device = static_cast<int>(job.runtime.ranks_per_device)};
  options.create_matmuls = [](const CudaDeviceProperties* /*gpu*/) {
    return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps());
  };
  options.create_attention = [](const CudaDeviceProperties* /*gpu*/) {
    return cuda::CreateCudnnAttention(
        [library = std::make_shared<testing::AttentionStandIn>()] { return library->Graphs(); });
  };
  return options;
}

HostOpsFactory NoHostOps(const Job& /*job*/, int64_t /*hardware_threads*/) { return nullptr; }

absl::StatusOr<std::unique_ptr<Backend>> CreateOnStandIns(const Job& job, HostOpsFactory /*host_ops*/,
                                                          const BackendPlace& place) {
  SHALE_RETURN_IF_ERROR(CheckProcesses(job, place));
  const std::shared_ptr<StandInRuntime> runtime(
      new StandInRuntime({.devices = NumberOf("SHALE_TEST_GPUS", 1), .memory_bytes = int64_t{16} << 30}),
      CheckAndDelete);
  CudaBackendOptions options = OptionsOf(job);
  options.share = place.share;
  JoinByNccl(job, LoadStandIn, runtime, place, options);
  return CreateCudaBackend(runtime, std::move(options));
}

void PrepareStandIns(const Job& job) { PrepareNcclEnvironment(job, LoadStandIn); }

absl::StatusOr<Machine> PlanForStandIns(const Job& job, HostOpsFactory /*host_ops*/, int64_t hardware_threads,
                                        const proto::MachineProfile* /*profile*/) {
  return PlanningMachineOf(CreateCudaBackend(/*runtime=*/nullptr, OptionsOf(job)), hardware_threads);
}

}  // namespace

const DeviceKind& CudaDevice() {
  static constexpr DeviceKind kStandIns = {NoHostOps, CreateOnStandIns, PrepareStandIns, PlanForStandIns};
  return kStandIns;
}

}  // namespace shale
