// The cpu_matmuls bench: compares what can compute the matmuls of a job on the CPU (runtime.cpu_matmuls), as the engine
// runs them: packing of operands included, strides and accumulation as in the job's program.
//
// The contestants take turns matmul by matmul, so that a noisy machine disturbs both alike.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device/cpu/cpu_device.h"
#include "kernels/ops/matmul.h"
#include "tools/bench/onednn.h"
#include "tools/bench/planned_job.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

constexpr CpuMatMuls kCpuMatMuls[] = {CpuMatMuls::kOneDnn, CpuMatMuls::kPacked};
constexpr size_t kContestants = std::size(kCpuMatMuls);

// The matmuls of one shape in a step, with operands of their own.
struct Shape {
  MatMul op;
  int64_t count = 0;
  std::vector<OperandMemory> operands;
  std::vector<double> seconds[kContestants];  // One entry for each repetition.

  double flops() const {
    return 2.0 * static_cast<double>(op.m()) * static_cast<double>(op.n()) * static_cast<double>(op.k());
  }
  double total(size_t contestant) const { return Median(seconds[contestant]) * static_cast<double>(count); }
};

std::string NameOf(const MatMul& op) {
  return absl::StrCat(op.m(), " x ", op.n(), " x ", op.k(), op.transpose_a ? " ta" : "", op.transpose_b ? " tb" : "",
                      op.accumulate ? " +=" : "", " ", ToString(op.a.dtype), " to ", ToString(op.c_MN.dtype));
}

// Returns the distinct matmuls of a step of one rank, each with b packed by itself.
std::vector<Shape> ShapesOf(const StepProgram& program) {
  std::vector<Shape> shapes;
  std::map<std::string, size_t> known;
  for (const Issue& issue : IssuesOf(program)) {
    const Op* op = std::get_if<Op>(&program.instructions[issue.id].action);
    const MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
    if (matmul == nullptr) continue;
    MatMul plain = *matmul;
    plain.packed_b = {};
    plain.b_is_packed = false;
    const std::string key = absl::StrCat(NameOf(plain), " ", plain.a.stride(0), " ", plain.b.stride(0), " ",
                                         plain.c_MN.stride(0), " ", plain.bias_N.present());
    const auto [at, is_new] = known.emplace(key, shapes.size());
    if (is_new) shapes.push_back({.op = plain});
    ++shapes[at->second].count;
  }
  return shapes;
}

absl::Status Bind(Shape& shape) {
  for (Tensor* tensor : {&shape.op.a, &shape.op.b, &shape.op.bias_N, &shape.op.c_MN}) {
    if (!tensor->present()) continue;
    shape.operands.push_back(RandomOperand(static_cast<size_t>(tensor->extent_bytes()), tensor->dtype));
    tensor->data = shape.operands.back().get();
    if (tensor->data == nullptr) return absl::ResourceExhaustedError("no memory for the operands of the matmuls");
  }
  return absl::OkStatus();
}

absl::Status Measure(std::vector<Shape>& shapes, int64_t repeats, int threads) {
  const std::unique_ptr<Device> device = CreateCpuDevice({.synchronous = true});
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("matmuls"));
  std::unique_ptr<Ops> ops[kContestants];
  int64_t scratch_bytes = 0;
  for (size_t i = 0; i < kContestants; ++i) {
    ops[i] = CreateCpuOps({.threads = threads, .cpu_matmuls = kCpuMatMuls[i]});
    for (const Shape& shape : shapes) scratch_bytes = std::max(scratch_bytes, ops[i]->ScratchBytes(shape.op));
  }
  const OperandMemory scratch = RandomOperand(static_cast<size_t>(scratch_bytes), DType::kFloat32);
  if (scratch == nullptr) return absl::ResourceExhaustedError("no memory for scratch");
  for (Shape& shape : shapes) {
    SHALE_RETURN_IF_ERROR(Bind(shape));
    for (int64_t repeat = 0; repeat <= repeats; ++repeat) {  // The first one does not count.
      for (size_t i = 0; i < kContestants; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        SHALE_RETURN_IF_ERROR(ops[i]->Launch(shape.op, {scratch.get(), scratch_bytes}, *stream));
        SHALE_RETURN_IF_ERROR(stream->Synchronize());
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        if (repeat > 0) shape.seconds[i].push_back(seconds.count());
      }
    }
    shape.operands.clear();
  }
  return absl::OkStatus();
}

void Report(const std::vector<Shape>& shapes, int threads) {
  std::printf("%s, %s instructions, %d threads; medians\n\n", ProcessorName().c_str(),
              std::string(cpu::ToString(cpu::UsedInstructionSet())).c_str(), threads);
  std::vector<MarkdownTable::Column> columns = {{"m x n x k", /*text=*/true}, {"times"}};
  for (const CpuMatMuls cpu_matmuls : kCpuMatMuls) columns.push_back({absl::StrCat(ToString(cpu_matmuls), " GFLOP/s")});
  columns.push_back({"speed of PACKED"});
  MarkdownTable table(std::move(columns));
  double flops = 0, seconds[kContestants] = {};
  const auto add = [&](const std::string& name, const std::string& count, double gflop, const double* took) {
    table.Add({name, count, Digits(gflop / took[0]), Digits(gflop / took[1]), Digits(took[0] / took[1])});
  };
  for (const Shape& shape : shapes) {
    const double took[] = {shape.total(0), shape.total(1)};
    const double of_shape = shape.flops() * static_cast<double>(shape.count);
    flops += of_shape;
    for (size_t i = 0; i < kContestants; ++i) seconds[i] += took[i];
    add(NameOf(shape.op), absl::StrCat(shape.count), of_shape * 1e-9, took);
  }
  add("a step", "", flops * 1e-9, seconds);
  std::printf("%s\na step: %s by ONEDNN, %s by PACKED\n", table.ToString().c_str(), Time(seconds[0]).c_str(),
              Time(seconds[1]).c_str());
}

struct Flags {
  std::string job;
  std::vector<std::string> overrides;
  int64_t repeats = 5;
};

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "cpu_matmuls: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(const Flags& flags) {
  const absl::StatusOr<ResolvedJob> resolved = ResolveBenchJob(flags.job, flags.overrides);
  if (!resolved.ok()) return Fail(resolved.status(), kExitUsage);
  const int threads = static_cast<int>(resolved->job.runtime.threads_per_rank);
  std::vector<Shape> shapes = ShapesOf(resolved->plan.train.step.program);
  if (const absl::Status status = Measure(shapes, flags.repeats, threads); !status.ok()) {
    return Fail(status, kExitFailed);
  }
  Report(shapes, threads);
  return kExitOk;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::Flags flags;
  shale::CommandLine line("cpu_matmuls",
                          "Times the matmuls of one rank's step of a job, alone, as runtime.cpu_matmuls ONEDNN and "
                          "PACKED compute them on this processor. Prints a table.");
  line.Text("job", "FILE", "The job spec, text or binary. Its data need not exist.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Integer("repeats", "Repetitions of each matmul, after one that does not count.", 1, 1000, &flags.repeats);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}
