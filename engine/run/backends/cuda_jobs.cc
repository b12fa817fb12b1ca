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

// The algorithms of matmuls that a job uses.
struct UsedTable {
  std::shared_ptr<const TuningTable> table;  // Null: the library chooses.
  std::string origin;                        // What messages call it.
  std::string gpu;                           // The first one.
};

// Returns the table that the job names, which in a folder is that of `gpu`, the first one. If it names none, returns
// the one that is compiled in for this GPU.
absl::StatusOr<UsedTable> TableOf(const Job& job, const absl::StatusOr<CudaDeviceProperties>& gpu) {
  UsedTable used{.origin = job.runtime.tuning_table};
  if (gpu.ok()) used.gpu = gpu->name;
  TuningTable table;
  if (used.origin.empty()) {
    SHALE_ASSIGN_OR_RETURN(table, CompiledTuningTable(used.gpu));
    used.origin = "this program's table";
    if (table.size() == 0) return used;
  } else {
    if (IsTuningFolder(used.origin)) SHALE_RETURN_IF_ERROR(gpu.status());
    used.origin = TuningTablePath(used.origin, used.gpu);
    absl::StatusOr<TuningTable> read = ReadTuningTable(used.origin);
    if (!read.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("runtime.tuning_table: ", read.status().message()));
    }
    table = *std::move(read);
  }
  used.table = std::make_shared<const TuningTable>(std::move(table));
  return used;
}

// Returns "13.1.0" for 130100.
std::string CublasLtVersion(size_t version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string DescribeMatMuls(const UsedTable& tuning) {
  const absl::StatusOr<CublasLtFunctions> cublaslt = CublasLtFunctions::Load(LibrarySearch::FromEnvironment());
  if (!cublaslt.ok()) return "";
  const auto version = static_cast<int64_t>(cublaslt->GetVersion());
  const std::string text = absl::StrCat("matmuls by cuBLASLt ", CublasLtVersion(cublaslt->GetVersion()));
  if (tuning.table == nullptr) return text;
  const std::string table = absl::StrCat(tuning.origin, " (digest ", tuning.table->Digest(), ")");
  const int64_t found = tuning.table->size({.gpu = tuning.gpu, .library_version = version});
  if (found > 0) return absl::StrCat(text, ", ", found, " algorithms of ", table);
  return absl::StrCat(text, ", whose own choice it is because ", table, " has no algorithm for this GPU and version");
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

std::string DescribeAttention(bool cudnn, const cuda::CudnnAttentionOptions& attention) {
  if (cudnn) {
    return absl::StrCat(
        "attention by cuDNN where it supports it",
        attention.rates.size() > 0 ? " and was not measured to be slower than the engine's kernels" : "",
        attention.deterministic ? "" : ", whose gradients differ in the last bits from run to run");
  }
  const absl::Status built = cuda::BuiltWithCudnn();
  return absl::StrCat("attention by the engine's own kernels", built.ok() ? "" : " (", built.message(),
                      built.ok() ? "" : ")");
}

// Whether cuDNN is used depends on the build and the job, and not on the libraries of this machine. Which ops it
// computes also depends on the kind of GPU (AttentionOptionsOn). So a job has the same plan on all machines with such
// GPUs.
bool UsesCudnn(const Job& job) { return job.runtime.cudnn_attention.value_or(true) && cuda::BuiltWithCudnn().ok(); }

absl::StatusOr<std::shared_ptr<NcclApi>> LoadSharedNccl() { return LoadNccl(); }

// Returns the options that decide the ops of the job. `tuning` may be null.
CudaBackendOptions OpsOptions(const Job& job, const std::shared_ptr<const TuningTable>& tuning,
                              const cuda::CudnnAttentionOptions& attention, HostOpsFactory create_host_ops) {
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
    options.create_attention = [attention](const CudaDeviceProperties* gpu) { return CreateAttention(attention, gpu); };
  }
  return options;
}

// Returns what creates the ops of updates on the host, which are all that the CPU computes of these jobs.
HostOpsFactory UpdateOpsOf(const Job& job, int64_t hardware_threads) {
  return [runtime = job.runtime, hardware_threads](int64_t ranks) {
    return CreateCpuUpdateOps(ThreadsPerRank(runtime, ranks, hardware_threads));
  };
}

absl::StatusOr<Machine> CudaMachineOf(const Job& job, HostOpsFactory create_host_ops, int64_t hardware_threads,
                                      const proto::MachineProfile* profile) {
  return CudaPlanningMachine(job, UsesCudnn(job), std::move(create_host_ops), hardware_threads, profile);
}

void PrepareCuda(const Job& job) {
  SetCudaEnvironment();
  PrepareNcclEnvironment(job, LoadSharedNccl);
}

absl::StatusOr<std::unique_ptr<Backend>> CreateOnCuda(const Job& job, HostOpsFactory create_host_ops,
                                                      const BackendPlace& place) {
  const std::shared_ptr<CudaRuntime> runtime = CreateCudart();
  // The first GPU decides for the plan and for all ranks. Without a GPU nothing runs, and whoever needs one says so.
  const absl::StatusOr<CudaDeviceProperties> gpu = runtime->Properties(0);
  SHALE_ASSIGN_OR_RETURN(const UsedTable tuning, TableOf(job, gpu));
  SHALE_RETURN_IF_ERROR(CheckCudaRanks(job));
  SHALE_RETURN_IF_ERROR(CheckProcesses(job, place));
  cuda::ComputeCapability kind;
  if (gpu.ok()) kind = {.major = gpu->compute_major, .minor = gpu->compute_minor};
  SHALE_ASSIGN_OR_RETURN(const cuda::CudnnAttentionOptions attention, AttentionOptionsOn(job, kind));
  CudaBackendOptions options = OpsOptions(job, tuning.table, attention, std::move(create_host_ops));
  options.share = place.share;
  options.describe_libraries = [tuning, cudnn = UsesCudnn(job), attention] {
    return absl::StrCat(DescribeMatMuls(tuning), "; ", DescribeAttention(cudnn, attention));
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
