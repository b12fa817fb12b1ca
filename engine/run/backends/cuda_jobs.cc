// Jobs with runtime.device CUDA.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/run/backends/cuda_backend.h"
#include "engine/run/backends/cuda_planning.h"
#include "engine/run/backends/device_kind.h"
#include "engine/run/backends/nccl_jobs.h"
#include "engine/run/backends/tuning_file.h"
#include "kernels/check.h"
#include "kernels/cpu/update_ops.h"
#include "kernels/cuda/cublaslt/cublaslt_matmuls.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "kernels/device/cuda/cudart.h"
#include "sharding/comm/nccl/nccl.h"
#include "sharding/comm/nccl/nccl_library.h"

namespace shale {
namespace {

using cuda::CublasLtFunctions;
using cuda::TuningTable;

// Returns the file of the job's tuning table, or "" if the job names none. In a folder it is that of the first GPU.
absl::StatusOr<std::string> TableFileOf(const Job& job, CudaRuntime& runtime) {
  const std::string& path = job.runtime.tuning_table;
  if (path.empty() || !IsTuningFolder(path)) return path;
  SHALE_ASSIGN_OR_RETURN(const CudaDeviceProperties gpu, runtime.Properties(0));
  return TuningTablePath(path, gpu.name);
}

// Returns the table that `file` holds, or null if `file` is "".
absl::StatusOr<std::shared_ptr<const TuningTable>> TableOf(const std::string& file) {
  if (file.empty()) return nullptr;
  absl::StatusOr<TuningTable> table = ReadTuningTable(file);
  if (table.ok()) return std::make_shared<const TuningTable>(*std::move(table));
  return absl::InvalidArgumentError(absl::StrCat("runtime.tuning_table: ", table.status().message()));
}

// Returns "13.1.0" for 130100.
std::string CublasLtVersion(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string DescribeMatMuls(const TuningTable* tuning, const std::string& path) {
  const absl::StatusOr<CublasLtFunctions> cublaslt = CublasLtFunctions::Load(LibrarySearch::FromEnvironment());
  std::string text;
  if (cublaslt.ok()) absl::StrAppend(&text, "matmuls by cuBLASLt ", CublasLtVersion(cublaslt->GetVersion()));
  if (tuning != nullptr) absl::StrAppend(&text, ", algorithms of ", path, " (digest ", tuning->Digest(), ")");
  return text;
}

std::unique_ptr<cuda::AttentionBackend> CreateAttention(const cuda::CudnnAttentionOptions& attention,
                                                        const CudaDeviceProperties* gpu) {
  cuda::CudnnOptions options{.search = LibrarySearch::FromEnvironment()};
  if (gpu != nullptr) {
    options.compute_major = gpu->compute_major;
    options.compute_minor = gpu->compute_minor;
  }
  return cuda::CreateCudnnAttention(
      [options]() -> absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> { return cuda::LoadCudnn(options); },
      attention);
}

std::string DescribeAttention(bool cudnn, bool deterministic) {
  if (cudnn) {
    return absl::StrCat("attention by cuDNN where it can",
                        deterministic ? "" : ", whose gradients differ in the last bits from run to run");
  }
  const absl::Status built = cuda::BuiltWithCudnn();
  return absl::StrCat("attention by the engine's own kernels", built.ok() ? "" : " (", built.message(),
                      built.ok() ? "" : ")");
}

// Whether cuDNN is used depends on the build and the job only, not on what this machine has, so that the plan is the
// same on every machine.
bool UsesCudnn(const Job& job) { return job.runtime.cudnn_attention && cuda::BuiltWithCudnn().ok(); }

absl::StatusOr<std::shared_ptr<NcclApi>> LoadSharedNccl() { return LoadNccl(); }

// Returns the options that decide the ops of the job. `tuning` may be null.
CudaBackendOptions OpsOptions(const Job& job, const std::shared_ptr<const TuningTable>& tuning,
                              HostOpsFactory create_host_ops) {
  CudaBackendOptions options;
  options.ranks_per_device = static_cast<int>(job.runtime.ranks_per_device);
  options.allow_tf32 = job.precision.allow_tf32;
  options.create_host_ops = std::move(create_host_ops);
  options.create_matmuls = [tuning, tf32 = job.precision.allow_tf32](const CudaDeviceProperties* gpu) {
    return cuda::CreateCublasLtMatMuls(
        [] { return CublasLtFunctions::Load(LibrarySearch::FromEnvironment()); },
        {.allow_tf32 = tf32, .tuning = tuning, .gpu = gpu == nullptr ? std::string() : gpu->name});
  };
  if (UsesCudnn(job)) {
    options.create_attention = [attention = AttentionOptionsOf(job)](const CudaDeviceProperties* gpu) {
      return CreateAttention(attention, gpu);
    };
  }
  return options;
}

// Returns what creates the ops of updates on the host, which are all that the CPU computes of these jobs.
HostOpsFactory UpdateOpsOf(const Job& job, int64_t hardware_threads) {
  return [runtime = job.runtime, hardware_threads](int64_t ranks) {
    return CreateCpuUpdateOps(ThreadsPerRank(runtime, ranks, hardware_threads));
  };
}

absl::StatusOr<Machine> CudaMachineOf(const Job& job, HostOpsFactory create_host_ops, int64_t hardware_threads) {
  return CudaPlanningMachine(job, UsesCudnn(job), std::move(create_host_ops), hardware_threads);
}

void PrepareCuda(const Job& job) {
  SetCudaEnvironment();
  PrepareNcclEnvironment(job, LoadSharedNccl);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateOnCuda(const Job& job, HostOpsFactory create_host_ops,
                                                      const BackendPlace& place) {
  const std::shared_ptr<CudaRuntime> runtime = CreateCudart();
  SHALE_ASSIGN_OR_RETURN(const std::string file, TableFileOf(job, *runtime));
  SHALE_ASSIGN_OR_RETURN(const std::shared_ptr<const TuningTable> tuning, TableOf(file));
  SHALE_RETURN_IF_ERROR(CheckCudaRanks(job));
  SHALE_RETURN_IF_ERROR(CheckProcesses(job, place));
  CudaBackendOptions options = OpsOptions(job, tuning, std::move(create_host_ops));
  options.share = place.share;
  options.describe_libraries = [tuning, file, cudnn = UsesCudnn(job),
                                deterministic = job.runtime.deterministic_attention] {
    return absl::StrCat(DescribeMatMuls(tuning.get(), file), "; ", DescribeAttention(cudnn, deterministic));
  };
  JoinByNccl(job, LoadSharedNccl, runtime, place, options);
  return CreateCudaBackend(runtime, std::move(options));
}

}  // namespace

const DeviceKind& CudaDevice() {
  static constexpr DeviceKind kind = {.host_ops = UpdateOpsOf,
                                      .create = CreateOnCuda,
                                      .prepare_environment = PrepareCuda,
                                      .planning_machine = CudaMachineOf};
  return kind;
}

}  // namespace shale
