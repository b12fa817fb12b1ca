// The matmuls bench: measures how long the matmuls of a job's step take when nothing else runs.
//
// Compiles the job as `train` does, and runs every matmul of a rank's step (forward, recomputed, backward, the head's
// chunks, each as often as in the step) with oneDNN in the program's order (onednn.h). bench_train compares the time of
// a step with the result. To bound the time of a step, the bench also reports the time of attention's matmuls, the
// bytes that packing operands, all other ops and the collectives move, and the rate of memory copies.

#include <omp.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/io/json_lines.h"
#include "engine/plan/planner/summary.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tools/bench/copy.h"
#include "tools/bench/onednn.h"
#include "tools/bench/passive_waiting.h"
#include "tools/bench/planned_job.h"
#include "tools/bench/step_work.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

constexpr char kAbout[] =
    "Times the matmuls of a step of a job, alone, with operand B packed beforehand; the matmuls that its attention "
    "consists of; and copies of memory, at their best. Ranks compute at the same time, and the results are averages "
    "over the ranks. Prints JSON: a line for every repetition of the step, and last the medians over the repetitions, "
    "for every size too, and what else the step computes and moves.";

// The times of one rank, one for each repetition of the step ("pass").
struct Measured {
  std::vector<double> seconds, attention_seconds;
  std::vector<std::vector<double>> of_shape;  // Total of all matmuls of one shape: [shape][pass].
  // When each memory copy began and ended. Some copies follow each pass.
  struct Copy {
    std::chrono::steady_clock::time_point begin, end;
  };
  std::vector<Copy> copies;
};

// Bytes that one rank copies at once.
constexpr size_t kCopyBytes = size_t{64} << 20;

// The work of one rank, with its own operands.
class Rank {
 public:
  // May throw dnnl::error. REQUIRES: `step` and `engine` outlive it.
  static absl::StatusOr<Rank> Create(const StepWork& step, int threads, const dnnl::engine& engine) {
    Rank rank(step, threads, engine);
    for (const MatMulSize& shape : step.shapes) {
      SHALE_ASSIGN_OR_RETURN(LinearMatMul matmul, LinearMatMul::Create(shape, engine));
      rank.matmuls_.push_back(std::move(matmul));
    }
    for (const auto& [size, count] : step.attention) {
      SHALE_ASSIGN_OR_RETURN(AttentionMatMuls some, AttentionMatMuls::Create(size, threads, engine));
      rank.attention_.emplace_back(std::move(some), count);
    }
    if (rank.from_ == nullptr || rank.to_ == nullptr) return absl::ResourceExhaustedError("no memory for copies");
    rank.measured_.of_shape.resize(step.shapes.size());
    return rank;
  }

  // Runs each matmul and a copy once, because the first execution fills caches and wakes threads. May throw
  // dnnl::error.
  void WarmUp() {
    for (LinearMatMul& matmul : matmuls_) matmul.Run(stream_);
    Copy();
  }
  // Runs all work of the step once, then some copies. All ranks begin each part together. May throw dnnl::error.
  void RunPass(std::barrier<>& together) {
    std::vector<double> of_shape(matmuls_.size(), 0.0);
    double seconds = 0, attention_seconds = 0;
    together.arrive_and_wait();
    for (size_t i : step_->order) {
      const double one = matmuls_[i].Run(stream_);
      of_shape[i] += one;
      seconds += one;
    }
    together.arrive_and_wait();
    for (auto& [some, count] : attention_) {
      for (int64_t i = 0; i < count; ++i) attention_seconds += some.Run();
    }
    for (int i = 0; i < kCopies; ++i) {
      together.arrive_and_wait();
      measured_.copies.push_back(Copy());
    }
    measured_.seconds.push_back(seconds);
    measured_.attention_seconds.push_back(attention_seconds);
    for (size_t i = 0; i < of_shape.size(); ++i) measured_.of_shape[i].push_back(of_shape[i]);
  }
  const Measured& measured() const { return measured_; }

 private:
  static constexpr int kCopies = 5;  // Per pass.

  Rank(const StepWork& step, int threads, const dnnl::engine& engine)
      : step_(&step), threads_(threads), stream_(engine) {}

  // Copies with non-temporal stores, which do not read the lines that they overwrite.
  Measured::Copy Copy() {
    const auto begin = std::chrono::steady_clock::now();
    CopyMemory(CopyKind::kNonTemporal, to_.get(), from_.get(), static_cast<int64_t>(kCopyBytes), threads_);
    return {begin, std::chrono::steady_clock::now()};
  }

  const StepWork* step_;
  int threads_;
  dnnl::stream stream_;
  std::vector<LinearMatMul> matmuls_;
  std::vector<std::pair<AttentionMatMuls, int64_t>> attention_;  // With how often the step runs it.
  OperandMemory from_ = RandomOperand(kCopyBytes, DType::kFloat32), to_ = RandomOperand(kCopyBytes, DType::kFloat32);
  Measured measured_;
};

// Runs all ranks at the same time, each on its own threads. May throw dnnl::error.
absl::StatusOr<std::vector<Measured>> Measure(const StepWork& step, int64_t repeats, int ranks, int threads,
                                              const dnnl::engine& engine) {
  omp_set_num_threads(threads);
  std::vector<Rank> all;
  for (int i = 0; i < ranks; ++i) {
    SHALE_ASSIGN_OR_RETURN(Rank rank, Rank::Create(step, threads, engine));
    all.push_back(std::move(rank));
  }
  std::barrier<> together(ranks);
  std::vector<std::exception_ptr> failures(ranks);
  const auto run = [&](int i) {
    omp_set_num_threads(threads);
    try {
      all[i].WarmUp();
      for (int64_t pass = 1; pass <= repeats; ++pass) {
        all[i].RunPass(together);
        together.arrive_and_wait();
        if (i == 0) {
          const double seconds = all[i].measured().seconds.back();
          std::printf("%s\n", JsonObject().Add("pass", pass).Add("seconds", seconds).ToString().c_str());
          std::fflush(stdout);
        }
        // Gives bench_train time to stop this process at the end of the pass, before the next one begins.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    } catch (const dnnl::error&) {
      failures[i] = std::current_exception();
      together.arrive_and_drop();
    }
  };
  std::vector<std::thread> running;
  for (int i = 0; i < ranks; ++i) running.emplace_back(run, i);
  for (std::thread& thread : running) thread.join();
  std::vector<Measured> measured;
  for (int i = 0; i < ranks; ++i) {
    if (failures[i] != nullptr) std::rethrow_exception(failures[i]);
    measured.push_back(all[i].measured());
  }
  return measured;
}

// Returns the mean over the ranks of each pass. A copy lasts from the first rank's begin to the last rank's end,
// because a rank that copies alone for a while is faster than all at once.
Measured MeanOf(const std::vector<Measured>& ranks) {
  Measured mean = ranks[0];
  const auto add = [](const std::vector<double>& from, std::vector<double>& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
  };
  const auto divide = [&](std::vector<double>& values) {
    for (double& value : values) value /= static_cast<double>(ranks.size());
  };
  for (size_t r = 1; r < ranks.size(); ++r) {
    add(ranks[r].seconds, mean.seconds);
    add(ranks[r].attention_seconds, mean.attention_seconds);
    for (size_t i = 0; i < mean.of_shape.size(); ++i) add(ranks[r].of_shape[i], mean.of_shape[i]);
    for (size_t i = 0; i < mean.copies.size(); ++i) {
      mean.copies[i].begin = std::min(mean.copies[i].begin, ranks[r].copies[i].begin);
      mean.copies[i].end = std::max(mean.copies[i].end, ranks[r].copies[i].end);
    }
  }
  divide(mean.seconds);
  divide(mean.attention_seconds);
  for (std::vector<double>& seconds : mean.of_shape) divide(seconds);
  return mean;
}

// Returns the best rate of the copies, in bytes that one rank reads and writes per second. Ops that find operands in
// caches are faster.
double BestCopyRate(const Measured& measured) {
  double least_seconds = std::numeric_limits<double>::infinity();
  for (const Measured::Copy& copy : measured.copies) {
    least_seconds = std::min(least_seconds, std::chrono::duration<double>(copy.end - copy.begin).count());
  }
  return 2 * static_cast<double>(kCopyBytes) / least_seconds;
}

std::string ShapeJson(const MatMulSize& shape, int64_t count, double seconds) {
  const double flops = shape.flops() * static_cast<double>(count);
  return JsonObject()
      .Add("m", shape.m)
      .Add("n", shape.n)
      .Add("k", shape.k)
      .Add("transposed_a", shape.transposed_a)
      .Add("dtype", ToString(shape.dtype))
      .Add("c_dtype", ToString(shape.c_dtype))
      .Add("count", count)
      .Add("gflop", flops * 1e-9)
      .Add("seconds", seconds)
      .Add("gflops_per_second", flops * 1e-9 / seconds)
      .ToString();
}

struct Flags {
  std::string job;
  std::vector<std::string> overrides;
  int64_t repeats = 5;
};

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "matmuls: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

// Makes all bf16 operands of a step fp32, and returns whether there were any.
bool WidenOperands(StepWork& step) {
  bool widened = false;
  for (MatMulSize& shape : step.shapes) {
    widened |= shape.dtype == DType::kBFloat16;
    shape.dtype = shape.c_dtype = DType::kFloat32;
  }
  std::map<AttentionSize, int64_t> attention;
  for (const auto& [size, count] : step.attention) {
    AttentionSize wide = size;
    wide.dtype = DType::kFloat32;
    attention[wide] += count;
  }
  step.attention = std::move(attention);
  return widened;
}

// Prints the medians.
void PrintMedians(const ResolvedJob& resolved, const StepWork& step, bool widened, const Measured& measured) {
  std::vector<int64_t> counts(step.shapes.size(), 0);
  for (size_t i : step.order) ++counts[i];
  double flops = 0;
  std::vector<std::string> shapes;
  for (size_t i = 0; i < step.shapes.size(); ++i) {
    flops += step.shapes[i].flops() * static_cast<double>(counts[i]);
    shapes.push_back(ShapeJson(step.shapes[i], counts[i], Median(measured.of_shape[i])));
  }
  const double seconds = Median(measured.seconds);
  const dnnl_version_t& version = *dnnl_version();
  std::string head = JsonObject()
                         .Add("onednn", absl::StrCat(version.major, ".", version.minor, ".", version.patch))
                         .Add("ranks", resolved.job.sharding.ranks)
                         .Add("threads", resolved.job.runtime.threads_per_rank)
                         .Add("parameters", CountParameters(resolved.plan.train.graph))
                         .Add("widened", widened)
                         .Add("matmuls", static_cast<int64_t>(step.order.size()))
                         .Add("gflop", flops * 1e-9)
                         .Add("seconds", seconds)
                         .Add("gflops_per_second", flops * 1e-9 / seconds)
                         .Add("attention_gflop", step.attention_flops * 1e-9)
                         .Add("attention_seconds", Median(measured.attention_seconds))
                         .Add("packed_bytes", step.packed_bytes)
                         .Add("other_bytes", step.other_bytes)
                         .Add("copy_bytes_per_second", BestCopyRate(measured))
                         .ToString();
  head.pop_back();
  std::printf("%s, \"passes\": [%s], \"shapes\": [%s]}\n", head.c_str(), absl::StrJoin(measured.seconds, ", ").c_str(),
              absl::StrJoin(shapes, ", ").c_str());
}

int Run(const Flags& flags) {
  const absl::StatusOr<ResolvedJob> resolved = ResolveBenchJob(flags.job, flags.overrides);
  if (!resolved.ok()) return Fail(resolved.status(), kExitUsage);
  const int ranks = static_cast<int>(resolved->job.sharding.ranks);
  const int threads = static_cast<int>(resolved->job.runtime.threads_per_rank);
  StepWork step = WorkOf(resolved->plan.train.step.program);

  absl::StatusOr<std::vector<Measured>> of_ranks;
  bool widened = false;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    widened = !MultipliesBFloat16(engine) && WidenOperands(step);
    of_ranks = Measure(step, flags.repeats, ranks, threads, engine);
  } catch (const dnnl::error& error) {
    return Fail(absl::InternalError(absl::StrCat("oneDNN: ", error.what(), " (status ", error.status, ")")),
                kExitFailed);
  }
  if (!of_ranks.ok()) return Fail(of_ranks.status(), kExitFailed);
  PrintMedians(*resolved, step, widened, MeanOf(*of_ranks));
  return kExitOk;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::WaitPassively(argv);
  shale::Flags flags;
  shale::CommandLine line("matmuls", shale::kAbout);
  line.Text("job", "FILE", "The job spec, text or binary. Its data need not exist.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Integer("repeats", "Repetitions of the step's matmuls, after one that does not count.", 1, 1000, &flags.repeats);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}
