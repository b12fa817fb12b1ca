// bench_products: how long the matrix products of a job's step take when nothing else is done.
//
// The job is compiled as `train` compiles it, and every product of one rank's step (forward, recomputed, backward, the
// head's chunks, each as often as the step runs it) goes through oneDNN in the order of the program, with operand B in
// the layout that oneDNN likes best, packed beforehand. Nothing is added, accumulated or rounded twice: what the step's
// own time is held against. For a bound of it there is also their time if each were always as fast as it was once, the
// best rate of any single one, what else the step computes and moves, and the rate of copies of memory.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
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
#include "tools/bench_step_work.h"
#include "tools/bench_support.h"
#include "tools/command_line.h"
#include "tools/passive_waiting.h"

namespace shale {
namespace {

dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

struct Free {
  void operator()(void* data) const { std::free(data); }
};
using Bytes = std::unique_ptr<void, Free>;

// Numbers of ordinary size, for products of zeros or denormals have a speed of their own. Null: no memory.
Bytes Operand(size_t size_bytes, DType dtype) {
  constexpr size_t kHugePage = size_t{2} << 20;
  Bytes bytes(std::aligned_alloc(kHugePage, (size_bytes + kHugePage - 1) / kHugePage * kHugePage));
  if (bytes == nullptr) return bytes;
  uint32_t state = 1;
  const auto next = [&] {
    state = state * 1664525 + 1013904223;
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  };
  if (dtype == DType::kBFloat16) {
    auto* values = static_cast<BFloat16*>(bytes.get());
    for (size_t i = 0; i < size_bytes / sizeof(BFloat16); ++i) values[i] = RoundToBFloat16(next());
  } else {
    auto* values = static_cast<float*>(bytes.get());
    for (size_t i = 0; i < size_bytes / sizeof(float); ++i) values[i] = next();
  }
  return bytes;
}

// One shape, ready to be run: the primitive and operands of its own, so that two shapes share no cache lines.
class Product {
 public:
  // May throw dnnl::error. REQUIRES: `engine` outlives it.
  static absl::StatusOr<Product> Create(const ProductSize& shape, const dnnl::engine& engine) {
    using dnnl::memory;
    const memory::desc a({shape.m, shape.k}, TypeOf(shape.dtype),
                         shape.transposed_a ? memory::dims{1, shape.m} : memory::dims{shape.k, 1});
    const memory::desc b({shape.k, shape.n}, TypeOf(shape.dtype), memory::format_tag::any);
    const memory::desc c({shape.m, shape.n}, TypeOf(shape.c_dtype), memory::dims{shape.n, 1});
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine);
    Product product;
    product.primitive_ = dnnl::matmul(description);
    const auto bind = [&](int argument, const memory::desc& desc, DType dtype) {
      Bytes bytes = Operand(desc.get_size(), dtype);
      if (bytes == nullptr) return false;
      product.arguments_[argument] = memory(desc, engine, bytes.get());
      product.operands_.push_back(std::move(bytes));
      return true;
    };
    // What b holds does not matter, so that it is filled as if it had been packed.
    if (!bind(DNNL_ARG_SRC, description.src_desc(), shape.dtype) ||
        !bind(DNNL_ARG_WEIGHTS, description.weights_desc(), shape.dtype) ||
        !bind(DNNL_ARG_DST, description.dst_desc(), shape.c_dtype)) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for the operands of a product of M=", shape.m, " N=",
                                                       shape.n, " K=", shape.k));
    }
    return product;
  }

  // Seconds. May throw dnnl::error.
  double Run(dnnl::stream& stream) {
    const auto begin = std::chrono::steady_clock::now();
    primitive_.execute(stream, arguments_);
    stream.wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::vector<Bytes> operands_;
};

// Below AVX-512 oneDNN multiplies no bf16, and neither does the engine: it widens.
bool MultipliesBFloat16(const dnnl::engine& engine) {
  using dnnl::memory;
  const memory::desc square({64, 64}, memory::data_type::bf16, memory::format_tag::ab);
  try {
    dnnl::matmul::primitive_desc(dnnl::matmul::desc(square, square, square), engine);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

struct Measured {
  std::vector<std::vector<double>> seconds;  // Of every pass over the step, summed by shape: [shape][pass].
  std::vector<double> fastest_seconds;       // Of a single product, by shape.
};
absl::StatusOr<Measured> Measure(const StepWork& step, int64_t repeats, const dnnl::engine& engine) {
  std::vector<Product> products;
  for (const ProductSize& shape : step.shapes) {
    SHALE_ASSIGN_OR_RETURN(Product product, Product::Create(shape, engine));
    products.push_back(std::move(product));
  }
  dnnl::stream stream(engine);
  // The first execution of each pays for caches and for waking threads.
  for (Product& product : products) product.Run(stream);
  Measured measured{.seconds = {products.size(), std::vector<double>(repeats, 0.0)},
                    .fastest_seconds = std::vector<double>(products.size(), std::numeric_limits<double>::infinity())};
  for (int64_t pass = 0; pass < repeats; ++pass) {
    for (size_t i : step.order) {
      const double seconds = products[i].Run(stream);
      measured.seconds[i][pass] += seconds;
      measured.fastest_seconds[i] = std::min(measured.fastest_seconds[i], seconds);
    }
  }
  return measured;
}

// Bytes read and written per second by copies of memory, at their best: non-temporal stores read nothing besides. 0: no
// memory for it.
double CopyRate(int threads) {
  constexpr size_t kBytes = size_t{128} << 20;
  const Bytes from = Operand(kBytes, DType::kFloat32), to = Operand(kBytes, DType::kFloat32);
  if (from == nullptr || to == nullptr) return 0;
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    CopyMemory(CopyKind::kNonTemporal, static_cast<std::byte*>(to.get()), static_cast<const std::byte*>(from.get()),
               static_cast<int64_t>(kBytes), threads);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, 2 * static_cast<double>(kBytes) / seconds);
  }
  return best;
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
    }
    measured = Measure(step, flags.repeats, engine);
  } catch (const dnnl::error& error) {
    return Fail(absl::InternalError(absl::StrCat("oneDNN: ", error.what(), " (status ", error.status, ")")), kExitFailed);
  }
  if (!measured.ok()) return Fail(measured.status(), kExitFailed);

  std::vector<int64_t> counts(step.shapes.size(), 0);
  for (size_t i : step.order) ++counts[i];
  double flops = 0, best_flops_per_second = 0, fastest_seconds = 0;
  std::vector<double> passes(flags.repeats, 0.0);
  std::vector<std::string> shapes;
  for (size_t i = 0; i < step.shapes.size(); ++i) {
    flops += step.shapes[i].flops() * static_cast<double>(counts[i]);
    const double fastest = measured->fastest_seconds[i];
    fastest_seconds += fastest * static_cast<double>(counts[i]);
    best_flops_per_second = std::max(best_flops_per_second, step.shapes[i].flops() / fastest);
    for (int64_t pass = 0; pass < flags.repeats; ++pass) passes[pass] += measured->seconds[i][pass];
    shapes.push_back(ShapeJson(step.shapes[i], counts[i], Median(measured->seconds[i])));
  }
  const dnnl_version_t& version = *dnnl_version();
  std::string head = JsonObject()
                         .Add("onednn", absl::StrCat(version.major, ".", version.minor, ".", version.patch))
                         .Add("threads", threads)
                         .Add("parameters", CountParameters(plan->train.graph))
                         .Add("widened", widened)
                         .Add("products", static_cast<int64_t>(step.order.size()))
                         .Add("gflop", flops * 1e-9)
                         .Add("seconds", Median(passes))
                         .Add("gflops_per_second", flops * 1e-9 / Median(passes))
                         .Add("fastest_seconds", fastest_seconds)
                         .Add("best_gflops_per_second", best_flops_per_second * 1e-9)
                         .Add("attention_gflop", step.attention_flops * 1e-9)
                         .Add("other_bytes", step.other_bytes)
                         .Add("copy_bytes_per_second", CopyRate(threads))
                         .ToString();
  head.pop_back();
  std::printf("%s,\n \"passes\": [%s],\n \"shapes\": [\n  %s\n]}\n", head.c_str(), absl::StrJoin(passes, ", ").c_str(),
              absl::StrJoin(shapes, ",\n  ").c_str());
  return kExitOk;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) {
  shale::WaitPassively(argv);
  shale::Flags flags;
  shale::CommandLine line(
      "bench_products",
      "Times the matrix products of one rank's step of a job, alone, with operand B packed beforehand. Prints JSON:\n"
      "GFLOP and seconds of the step (median over the passes), and the same for every shape; what bounds such a step.");
  line.Text("job", "FILE", "The job spec, text or binary. Its data need not exist.", &flags.job).Required();
  line.List("set", "PATH=VALUE", "Overrides a field of the job.", &flags.overrides);
  line.Integer("repeats", "Passes over the products of the step, after one that does not count.", 1, 1000,
               &flags.repeats);
  if (int exit_code; line.Done(argc, argv, &exit_code)) return exit_code;
  return shale::Run(flags);
}
