// bench_products: how long the matrix products of a job's step take when nothing else is done.
//
// The job is compiled as `train` compiles it, and every product of one rank's step (forward, recomputed, backward, the
// head's chunks, each as often as the step runs it) goes through oneDNN in the order of the program (bench_onednn.h):
// what the step's own time is held against. For a bound of it there are also the products that its attention consists
// of, what all other ops move, and the rate of copies of memory.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
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
#include "engine/backends/job_backend.h"
#include "engine/config/parse.h"
#include "engine/io/json_lines.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tools/bench_copy.h"
#include "tools/bench_onednn.h"
#include "tools/bench_step_work.h"
#include "tools/bench_support.h"
#include "tools/command_line.h"
#include "tools/passive_waiting.h"

namespace shale {
namespace {

constexpr char kAbout[] =
    "Times the matrix products of one rank's step of a job, alone, with operand B packed beforehand; the products that "
    "its attention consists of; and copies of memory, at their best. Prints JSON: a line for every pass over the step, "
    "and last the medians over the passes, for every size too, and what else the step computes and moves.";

// Bytes read and written per second by copies of memory: non-temporal stores read nothing besides.
class Copies {
 public:
  explicit Copies(int threads) : threads_(threads) {}
  bool has_memory() const { return from_ != nullptr && to_ != nullptr; }

  double Rate() const {
    const auto begin = std::chrono::steady_clock::now();
    CopyMemory(CopyKind::kNonTemporal, to_.get(), from_.get(), static_cast<int64_t>(kBytes), threads_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return 2 * static_cast<double>(kBytes) / seconds;
  }

 private:
  static constexpr size_t kBytes = size_t{128} << 20;
  const int threads_;
  const OperandBytes from_ = RandomOperand(kBytes, DType::kFloat32), to_ = RandomOperand(kBytes, DType::kFloat32);
};

// By pass.
struct Measured {
  std::vector<double> seconds, attention_seconds;
  std::vector<std::vector<double>> of_shape;  // Seconds of all products of one shape: [shape][pass].
  // The best of a copy after each pass: what an op finds in caches moves faster.
  double copy_rate = 0;
};
absl::StatusOr<Measured> Measure(const StepWork& step, int64_t repeats, int threads, const dnnl::engine& engine) {
  std::vector<LinearProduct> products;
  for (const ProductSize& shape : step.shapes) {
    SHALE_ASSIGN_OR_RETURN(LinearProduct product, LinearProduct::Create(shape, engine));
    products.push_back(std::move(product));
  }
  std::vector<std::pair<AttentionProducts, int64_t>> attention;
  for (const auto& [size, count] : step.attention) {
    SHALE_ASSIGN_OR_RETURN(AttentionProducts some, AttentionProducts::Create(size, threads, engine));
    attention.emplace_back(std::move(some), count);
  }
  const Copies copies(threads);
  if (!copies.has_memory()) return absl::ResourceExhaustedError("no memory for copies");
  dnnl::stream stream(engine);
  // The first execution of each pays for caches and for waking threads.
  for (LinearProduct& product : products) product.Run(stream);
  copies.Rate();

  Measured measured{.of_shape = {products.size(), std::vector<double>(repeats, 0.0)}};
  for (int64_t pass = 0; pass < repeats; ++pass) {
    double seconds = 0, attention_seconds = 0;
    for (size_t i : step.order) {
      const double one = products[i].Run(stream);
      measured.of_shape[i][pass] += one;
      seconds += one;
    }
    for (const auto& [some, count] : attention) {
      for (int64_t i = 0; i < count; ++i) attention_seconds += some.Run();
    }
    measured.seconds.push_back(seconds);
    measured.attention_seconds.push_back(attention_seconds);
    measured.copy_rate = std::max(measured.copy_rate, copies.Rate());
    std::printf("%s\n", JsonObject().Add("pass", pass + 1).Add("seconds", seconds).ToString().c_str());
    std::fflush(stdout);
    // Who stops this process at the end of a pass should not do so within the next.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return measured;
}

std::string ShapeJson(const ProductSize& shape, int64_t count, double seconds) {
  const double flops = shape.flops() * static_cast<double>(count);
  return JsonObject()
      .Add("m", shape.m).Add("n", shape.n).Add("k", shape.k)
      .Add("transposed_a", shape.transposed_a)
      .Add("dtype", ToString(shape.dtype)).Add("c_dtype", ToString(shape.c_dtype))
      .Add("count", count)
      .Add("gflop", flops * 1e-9).Add("seconds", seconds).Add("gflops_per_second", flops * 1e-9 / seconds)
      .ToString();
}

struct Flags {
  std::string job;
  std::vector<std::string> overrides;
  int64_t repeats = 5;
};

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "bench_products: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int Run(const Flags& flags) {
  const absl::StatusOr<Job> job = LoadJob(flags.job, flags.overrides);
  if (!job.ok()) return Fail(job.status(), kExitUsage);
  if (Vocabulary(job->model) == 0) {
    return Fail(absl::InvalidArgumentError("the job leaves its vocabulary to its data, which is not read here; name it: "
                                           "--set model.decoder.vocabulary=N"), kExitUsage);
  }
  const int threads = ThreadsPerRank(*job);
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(*job);
  if (!backend.ok()) return Fail(backend.status(), kExitUsage);
  const absl::StatusOr<JobPlan> plan = PlanJob(*job, *(*backend)->CreateOps(/*device=*/nullptr));
  if (!plan.ok()) return Fail(plan.status(), kExitUsage);
  StepWork step = WorkOf(plan->train.step.program);

  omp_set_num_threads(threads);
  absl::StatusOr<Measured> measured;
  bool widened = false;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    if (!MultipliesBFloat16(engine)) {
      for (ProductSize& shape : step.shapes) {
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
    }
    measured = Measure(step, flags.repeats, threads, engine);
  } catch (const dnnl::error& error) {
    return Fail(absl::InternalError(absl::StrCat("oneDNN: ", error.what(), " (status ", error.status, ")")), kExitFailed);
  }
  if (!measured.ok()) return Fail(measured.status(), kExitFailed);

  std::vector<int64_t> counts(step.shapes.size(), 0);
  for (size_t i : step.order) ++counts[i];
  double flops = 0;
  std::vector<std::string> shapes;
  for (size_t i = 0; i < step.shapes.size(); ++i) {
    flops += step.shapes[i].flops() * static_cast<double>(counts[i]);
    shapes.push_back(ShapeJson(step.shapes[i], counts[i], Median(measured->of_shape[i])));
  }
  const double seconds = Median(measured->seconds);
  const dnnl_version_t& version = *dnnl_version();
  std::string head = JsonObject()
                         .Add("onednn", absl::StrCat(version.major, ".", version.minor, ".", version.patch))
                         .Add("threads", threads)
                         .Add("parameters", CountParameters(plan->train.graph))
                         .Add("widened", widened)
                         .Add("products", static_cast<int64_t>(step.order.size()))
                         .Add("gflop", flops * 1e-9)
                         .Add("seconds", seconds)
                         .Add("gflops_per_second", flops * 1e-9 / seconds)
                         .Add("attention_gflop", step.attention_flops * 1e-9)
                         .Add("attention_seconds", Median(measured->attention_seconds))
                         .Add("other_bytes", step.other_bytes)
                         .Add("copy_bytes_per_second", measured->copy_rate)
                         .ToString();
  head.pop_back();
  std::printf("%s, \"passes\": [%s], \"shapes\": [%s]}\n", head.c_str(), absl::StrJoin(measured->seconds, ", ").c_str(),
              absl::StrJoin(shapes, ", ").c_str());
  return kExitOk;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::WaitPassively(argv);
  shale::Flags flags;
  shale::CommandLine line("bench_products", shale::kAbout);
  line.Text("job", "FILE", "The job spec, text or binary. Its data need not exist.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Integer("repeats", "Passes over the products of the step, after one that does not count.", 1, 1000,
               &flags.repeats);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}
