// Jobs with runtime.device CPU.
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/files/io/file.h"
#include "engine/run/backends/cpu_backend.h"
#include "engine/run/backends/device_kind.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/measure_matmuls.h"
#include "kernels/hardware_threads.h"

namespace shale {
namespace {

CpuBackendOptions CpuOptionsOf(const Job& job, int64_t hardware_threads) {
  return {.ops = job.runtime.ops,
          .cpu_matmuls = job.runtime.cpu_matmuls,
          .threads = [runtime = job.runtime, hardware_threads](int64_t ranks) {
            return ThreadsPerRank(runtime, ranks, hardware_threads);
          }};
}

HostOpsFactory CpuOpsOf(const Job& job, int64_t hardware_threads) {
  return [options = CpuOptionsOf(job, hardware_threads)](int64_t ranks) { return CreateHostOps(options, ranks); };
}

absl::StatusOr<std::unique_ptr<Backend>> CreateOnCpu(const Job& job, HostOpsFactory, const BackendPlace&) {
  return CreateCpuBackend(CpuOptionsOf(job, HardwareThreads()));
}

absl::StatusOr<Machine> CpuMachineOf(const Job& job, HostOpsFactory, int64_t hardware_threads,
                                     const proto::MachineProfile*) {
  return PlanningMachineOf(CreateCpuBackend(CpuOptionsOf(job, hardware_threads)), hardware_threads);
}

std::string FileOf(CpuMatMuls cpu_matmuls) { return absl::StrCat(ToString(cpu_matmuls), "\n"); }

// Returns kAuto if there is no file, or if it holds anything but a choice.
CpuMatMuls Remembered(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, /*max_bytes=*/64);
  for (const CpuMatMuls cpu_matmuls : {CpuMatMuls::kOneDnn, CpuMatMuls::kPacked}) {
    if (text.ok() && *text == FileOf(cpu_matmuls)) return cpu_matmuls;
  }
  return CpuMatMuls::kAuto;
}

std::string Line(CpuMatMuls cpu_matmuls, absl::string_view why) {
  return absl::StrCat("matmuls by ", ToString(cpu_matmuls), ": ", why);
}

absl::StatusOr<std::string> ChooseCpuMatMuls(Job& job, const std::string& cache_folder) {
  RuntimeConfig& runtime = job.runtime;
  if (runtime.device != DeviceType::kCpu || runtime.ops != OpsKind::kFast) return "";
  if (runtime.cpu_matmuls != CpuMatMuls::kAuto) {
    return Line(runtime.cpu_matmuls, "as the job, or the run that it resumes, says");
  }
  SHALE_RETURN_IF_ERROR(cpu::CheckInstructionSetLimit());
  const auto usual = [&](absl::string_view why) {
    runtime.cpu_matmuls = DefaultCpuMatMuls();
    return Line(runtime.cpu_matmuls,
                absl::StrCat("the usual choice, because a measurement of the faster one cannot be kept: ", why));
  };
  if (job.precision.compute == ComputePrecision::kFloat16) {
    runtime.cpu_matmuls = CpuMatMuls::kPacked;
    return Line(runtime.cpu_matmuls, "only they widen f16 operands to fp32, at the speed of fp32");
  }
  if (cache_folder.empty()) return usual("neither XDG_CACHE_HOME nor HOME is an absolute path");
  const DType dtype = DTypeOf(job.precision.compute);
  const std::string path = absl::StrCat(cache_folder, "/cpu_matmuls-", CpuMatMulsKey(dtype));
  runtime.cpu_matmuls = Remembered(path);
  if (runtime.cpu_matmuls != CpuMatMuls::kAuto) {
    return Line(runtime.cpu_matmuls, absl::StrCat("measured before (", path, ")"));
  }
  absl::Status kept = MakeFolders(cache_folder);
  if (!kept.ok()) return usual(kept.message());
  SHALE_ASSIGN_OR_RETURN(const MeasuredMatMuls measured, MeasureCpuMatMuls(dtype));
  kept = WriteFileDurably(path, FileOf(measured.cpu_matmuls));
  if (!kept.ok()) return usual(kept.message());
  runtime.cpu_matmuls = measured.cpu_matmuls;
  return Line(measured.cpu_matmuls,
              measured.packed_speed == 0
                  ? absl::StrCat("oneDNN has no matmuls of ", ToString(dtype), " for this processor")
                  : absl::StrFormat("PACKED has %.2f x the speed of ONEDNN in %s, as measured now on one thread",
                                    measured.packed_speed, ToString(dtype)));
}

}  // namespace

const DeviceKind& CpuDevice() {
  static constexpr DeviceKind kind = {.host_ops = CpuOpsOf,
                                      .create = CreateOnCpu,
                                      .prepare_environment = [](const Job&) {},
                                      .planning_machine = CpuMachineOf,
                                      .decide_cpu_matmuls = ChooseCpuMatMuls};
  return kind;
}

}  // namespace shale
