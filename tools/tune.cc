// tune: finds cuBLASLt's fastest algorithm for every matmul of some jobs, on this machine's GPU.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/compile/program/issues.h"
#include "engine/files/io/file.h"
#include "engine/run/backends/tuning_file.h"
#include "kernels/check.h"
#include "kernels/cuda/cublaslt/tuner.h"
#include "kernels/device/cuda/cudart.h"
#include "kernels/ops/matmul.h"
#include "tools/command_line.h"

namespace shale {
namespace {

using cuda::CublasLtFunctions;
using cuda::MatMulKey;
using cuda::TunedMatMul;
using cuda::Tuner;
using cuda::TunerOptions;
using cuda::TuningTable;

struct Flags {
  std::vector<std::string> jobs;
  std::vector<std::string> set;
  std::string out;
  int64_t gpu = 0;
  int64_t candidates = 16;
  int64_t variants = 256;
  int64_t finalists = 8;
  int64_t rounds = 5;
  int64_t launches = 20;
};

struct CountedMatMul {
  MatMul op;
  int64_t count = 0;  // Instructions of all programs that are this matmul.
  double flops() const { return static_cast<double>(count) * FlopsOf(Op(op)); }
};

// Adds the matmuls of a job's programs to `matmuls`.
absl::Status AddMatMuls(const Job& job, const DataFacts& data, std::map<MatMulKey, CountedMatMul>& matmuls) {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(const ResolvedJob resolved, ResolveJob(job, data, backend->machine().WithoutBudget()));
  const auto add = [&](const MatMul& op) {
    CountedMatMul& counted = matmuls[MatMulKey::Of(op, job.precision.allow_tf32)];
    counted.op = op;
    ++counted.count;
  };
  std::vector<const PlannedProgram*> programs = {&resolved.plan.train, &resolved.plan.evaluate};
  for (const PlannedProgram& program : resolved.plan.generate) programs.push_back(&program);
  for (const PlannedProgram* program : programs) {
    for (const Instruction& instruction : program->step.program.instructions) {
      VisitForms(instruction, [&](const Op& form) {
        if (const MatMul* matmul = form.As<MatMul>()) add(*matmul);
      });
    }
  }
  return absl::OkStatus();
}

// Reads the table at `path`, whose entries for other machines and other matmuls are kept. Returns an empty table if
// there is no file.
absl::StatusOr<TuningTable> TableToAddTo(const std::string& path) {
  absl::StatusOr<TuningTable> table = ReadTuningTable(path);
  if (table.ok()) return table;
  if (absl::IsNotFound(table.status())) return TuningTable();
  return absl::Status(table.status().code(), absl::StrCat("--out: ", table.status().message()));
}

void PrintRow(const TunedMatMul& tuned, int64_t count) {
  const double flops = 2.0 * tuned.key.m * tuned.key.n * tuned.key.k;
  std::printf("%9.1f us  %6.1f TFLOP/s  %5.2f x the library's first  of %3d  %3lld x  %s\n", tuned.seconds * 1e6,
              flops / tuned.seconds / 1e12, tuned.first_seconds / tuned.seconds, tuned.timed,
              static_cast<long long>(count), tuned.key.ToString().c_str());
  std::fflush(stdout);
}

// The matmuls of all jobs.
struct JobMatMuls {
  std::map<MatMulKey, CountedMatMul> matmuls;
  bool tf32 = false;  // precision.allow_tf32 of all jobs.
};

absl::StatusOr<JobMatMuls> MatMulsOfJobs(const Flags& flags) {
  JobMatMuls found;
  for (const std::string& path : flags.jobs) {
    SHALE_ASSIGN_OR_RETURN(Job job, LoadJob(path, flags.set));
    if (job.runtime.device != DeviceType::kCuda) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": runtime.device is CPU; add --set runtime.device=CUDA"));
    }
    const absl::StatusOr<DataFacts> data = DataFactsForPlanning(job);
    if (!data.ok()) return absl::Status(data.status().code(), absl::StrCat(path, ": ", data.status().message()));
    // Plans without the tuning table, which need not exist yet.
    job.runtime.tuning_table.clear();
    if (!found.matmuls.empty() && found.tf32 != job.precision.allow_tf32) {
      return absl::InvalidArgumentError("jobs with and without precision.allow_tf32: tune them one after the other");
    }
    found.tf32 = job.precision.allow_tf32;
    SHALE_RETURN_IF_ERROR(AddMatMuls(job, *data, found.matmuls));
  }
  return found;
}

// Returns the matmuls, those with most work first, so that an early end loses little.
std::vector<std::pair<MatMulKey, CountedMatMul>> ByWork(const std::map<MatMulKey, CountedMatMul>& matmuls) {
  std::vector<std::pair<MatMulKey, CountedMatMul>> ordered(matmuls.begin(), matmuls.end());
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second.flops() > b.second.flops(); });
  return ordered;
}

absl::Status Tune(const Flags& flags) {
  SHALE_ASSIGN_OR_RETURN(const JobMatMuls jobs, MatMulsOfJobs(flags));
  // Refuses a file that is no table before anything starts.
  if (!IsTuningFolder(flags.out)) SHALE_RETURN_IF_ERROR(TableToAddTo(flags.out).status());

  const std::unique_ptr<CudaRuntime> runtime = CreateCudart();
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevice> device,
                         CudaDevice::Create(*runtime, {.ordinal = static_cast<int>(flags.gpu)}));
  SHALE_ASSIGN_OR_RETURN(const CublasLtFunctions functions, CublasLtFunctions::Load(LibrarySearch::FromEnvironment()));
  const std::string out = TuningTablePath(flags.out, device->properties().name);
  SHALE_RETURN_IF_ERROR(MakeFoldersOf(out));
  SHALE_ASSIGN_OR_RETURN(TuningTable table, TableToAddTo(out));
  int64_t operand_bytes = 0;
  for (const auto& [key, matmul] : jobs.matmuls)
    operand_bytes = std::max(operand_bytes, Tuner::OperandBytes(matmul.op));
  const TunerOptions options{.allow_tf32 = jobs.tf32,
                             .candidates = static_cast<int>(flags.candidates),
                             .variants = static_cast<int>(flags.variants),
                             .finalists = static_cast<int>(flags.finalists),
                             .rounds = static_cast<int>(flags.rounds),
                             .launches = static_cast<int>(flags.launches)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Tuner> tuner,
                         Tuner::Create(*runtime, *device, functions, operand_bytes, options));

  const TuningTable::Machine machine{.gpu = device->properties().name,
                                     .library_version = static_cast<int64_t>(functions.GetVersion())};
  std::printf("%zu matmuls on %s, cuBLASLt %d\n", jobs.matmuls.size(), machine.gpu.c_str(),
              static_cast<int>(machine.library_version));
  double first_seconds = 0, seconds = 0;
  for (const auto& [key, matmul] : ByWork(jobs.matmuls)) {
    SHALE_ASSIGN_OR_RETURN(const TunedMatMul tuned, tuner->Tune(matmul.op));
    PrintRow(tuned, matmul.count);
    first_seconds += static_cast<double>(matmul.count) * tuned.first_seconds;
    seconds += static_cast<double>(matmul.count) * tuned.seconds;
    SHALE_RETURN_IF_ERROR(table.Set(machine, key, tuned.algorithm));
    // Writes the table after every matmul, so that nothing is lost if this program is stopped early.
    SHALE_RETURN_IF_ERROR(WriteFileDurably(out, table.Print()));
  }
  std::printf("sum over all instructions: %.3f ms, with the library's first choices %.3f ms, %.3f x; digest %s\n",
              seconds * 1e3, first_seconds * 1e3, seconds > 0 ? first_seconds / seconds : 1.0, table.Digest().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("tune",
                          "Times cuBLASLt's algorithms for every matmul of some jobs on this machine's GPU, and "
                          "writes the fastest into a table, which runtime.tuning_table of a job names.");
  line.List("job", "FILE", "A job whose matmuls are tuned.", &flags.jobs).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of every job.", &flags.set);
  line.Text("out", "FILE|FOLDER/",
            "The table, or a folder for it, where its file is named by the GPU (NVIDIA_H200.txt). What is in the table "
            "for other matmuls or machines stays.",
            &flags.out)
      .Required();
  line.Integer("gpu", "Which GPU, as CUDA counts the visible ones.", 0, 1023, &flags.gpu);
  line.Integer("candidates", "How many of the library's proposals to time for a matmul, at most.", 1, 1000,
               &flags.candidates);
  line.Integer("variants", "How many algorithms with other tiles and splits of K to time besides, at most.", 0, 100000,
               &flags.variants);
  line.Integer("finalists", "How many of the fastest algorithms to time again, in rounds.", 1, 1000, &flags.finalists);
  line.Integer("rounds", "How many rounds. The algorithm with the lowest median wins.", 1, 100000, &flags.rounds);
  line.Integer("launches", "How often each algorithm is launched in a round, back to back.", 1, 100000,
               &flags.launches);
  line.Footer(
      "Run it with nothing else on the GPU. Exit codes: 0 tuned; 1 failed; 2 wrong command line or job, or no GPU.");
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  const absl::Status status = shale::Tune(flags);
  if (status.ok()) return shale::kExitOk;
  const std::string message(status.message());
  std::fprintf(stderr, "tune: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) || absl::IsNotFound(status)
             ? shale::kExitUsage
             : shale::kExitFailed;
}
