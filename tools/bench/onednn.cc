#include "tools/bench/onednn.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/integers.h"

namespace shale {
namespace {

using dnnl::memory;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// Lets the caller provide the scratchpad, because a primitive that owns one must not run on two threads at once.
dnnl::matmul::primitive_desc Describe(const MatMulSize& size, const dnnl::engine& engine) {
  const memory::desc a({size.m, size.k}, TypeOf(size.dtype),
                       size.transposed_a ? memory::dims{1, size.m} : memory::dims{size.k, 1});
  const memory::desc b({size.k, size.n}, TypeOf(size.dtype), memory::format_tag::any);
  const memory::desc c({size.m, size.n}, TypeOf(size.c_dtype), memory::dims{size.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return {dnnl::matmul::desc(a, b, c), attributes, engine};
}

// Sets the number of threads that OpenMP, and thus oneDNN, uses. The destructor restores the former number.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }

 private:
  const int before_;
};

}  // namespace

OperandMemory RandomOperand(size_t size_bytes, DType dtype) {
  constexpr size_t kHugePage = size_t{2} << 20;
  OperandMemory bytes(static_cast<std::byte*>(std::aligned_alloc(kHugePage, RoundUp(size_bytes, kHugePage))));
  if (bytes == nullptr) return bytes;
  uint32_t state = 1;
  const auto next = [&] {
    state = state * 1664525 + 1013904223;
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  };
  if (dtype == DType::kBFloat16) {
    auto* values = reinterpret_cast<BFloat16*>(bytes.get());
    for (size_t i = 0; i < size_bytes / sizeof(BFloat16); ++i) values[i] = RoundToBFloat16(next());
  } else {
    auto* values = reinterpret_cast<float*>(bytes.get());
    for (size_t i = 0; i < size_bytes / sizeof(float); ++i) values[i] = next();
  }
  return bytes;
}

bool MultipliesBFloat16(const dnnl::engine& engine) {
  try {
    Describe({.m = 64, .n = 64, .k = 64, .dtype = DType::kBFloat16, .c_dtype = DType::kBFloat16}, engine);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

absl::StatusOr<LinearMatMul> LinearMatMul::Create(const MatMulSize& size, const dnnl::engine& engine) {
  const dnnl::matmul::primitive_desc description = Describe(size, engine);
  LinearMatMul matmul;
  matmul.primitive_ = dnnl::matmul(description);
  const auto bind = [&](int argument, const memory::desc& desc, DType dtype) {
    OperandMemory bytes = RandomOperand(desc.get_size(), dtype);
    if (bytes == nullptr) return false;
    matmul.arguments_[argument] = memory(desc, engine, bytes.get());
    matmul.operands_.push_back(std::move(bytes));
    return true;
  };
  // The values of b do not matter, so random ones are written directly in the packed layout.
  if (!bind(DNNL_ARG_SRC, description.src_desc(), size.dtype) ||
      !bind(DNNL_ARG_WEIGHTS, description.weights_desc(), size.dtype) ||
      !bind(DNNL_ARG_DST, description.dst_desc(), size.c_dtype) ||
      !bind(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc(), DType::kFloat32)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the operands of a matmul of M=", size.m, " N=", size.n, " K=", size.k));
  }
  return matmul;
}

double LinearMatMul::Run(dnnl::stream& stream) {
  const Clock::time_point begin = Clock::now();
  primitive_.execute(stream, arguments_);
  stream.wait();
  return SecondsSince(begin);
}

absl::StatusOr<AttentionMatMuls> AttentionMatMuls::Create(const AttentionSize& size, int threads,
                                                          const dnnl::engine& engine) {
  AttentionMatMuls matmuls(size, threads);
  for (int thread = 0; thread < threads; ++thread) matmuls.streams_.emplace_back(engine);
  double least = 0;
  for (const int64_t length : {32, 64, 128}) {
    Strips strips = matmuls.StripsOf(length, engine);
    if (!matmuls.Bind(strips, engine)) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for attention over ", size.length, " positions"));
    }
    matmuls.Run(strips);  // Not timed: the first execution fills caches and wakes threads.
    const double seconds = std::min(matmuls.Run(strips), matmuls.Run(strips));
    if (matmuls.fastest_.empty() || seconds < least) {
      matmuls.fastest_ = std::move(strips);
      least = seconds;
    }
  }
  return matmuls;
}

AttentionMatMuls::Strips AttentionMatMuls::StripsOf(int64_t length, const dnnl::engine& engine) const {
  const OpenMpThreads one(1);  // Each matmul runs on one thread.
  Strips strips;
  const auto add = [&](int64_t m, int64_t n, int64_t k, bool transposed_a) {
    const MatMulSize matmul{
        .m = m, .n = n, .k = k, .transposed_a = transposed_a, .dtype = size_.dtype, .c_dtype = DType::kFloat32};
    const dnnl::matmul::primitive_desc description = Describe(matmul, engine);
    strips.push_back({description, dnnl::matmul(description), {}});
  };
  for (int64_t begin = 0; begin < size_.length; begin += length) {
    const int64_t queries = std::min(length, size_.length - begin);
    const int64_t window = size_.window > 0 ? size_.window - 1 : size_.length;
    const int64_t keys = size_.causal ? queries + std::min(begin, window) : size_.length, width = size_.width;
    add(queries, keys, width, false);  // Scores.
    if (!size_.backward) {
      add(queries, width, keys, false);
      continue;
    }
    add(queries, keys, width, false);  // The gradient of p.
    add(queries, width, keys, false);  // d_q.
    add(keys, width, queries, true);   // d_k.
    add(keys, width, queries, true);   // d_v.
  }
  return strips;
}

bool AttentionMatMuls::Bind(Strips& strips, const dnnl::engine& engine) {
  size_t most_bytes = 0;
  for (const HeadMatMul& matmul : strips) {
    const auto& d = matmul.description;
    for (const memory::desc& desc : {d.src_desc(), d.weights_desc(), d.dst_desc(), d.scratchpad_desc()}) {
      most_bytes = std::max(most_bytes, desc.get_size());
    }
  }
  for (int thread = 0; thread < threads_; ++thread) {
    std::byte* own[4];
    for (std::byte*& bytes : own) {
      bytes_.push_back(RandomOperand(most_bytes, size_.dtype));
      bytes = bytes_.back().get();
      if (bytes == nullptr) return false;
    }
    for (HeadMatMul& matmul : strips) {
      const auto& d = matmul.description;
      matmul.of_thread.push_back({memory(d.src_desc(), engine, own[0]), memory(d.weights_desc(), engine, own[1]),
                                  memory(d.dst_desc(), engine, own[2]), memory(d.scratchpad_desc(), engine, own[3])});
    }
  }
  return true;
}

double AttentionMatMuls::Run(const Strips& strips) {
  std::atomic<dnnl_status_t> failure = dnnl_success;
  const Clock::time_point begin = Clock::now();
#pragma omp parallel for num_threads(threads_) schedule(dynamic)
  for (int64_t head = 0; head < size_.heads; ++head) {
    const int thread = omp_get_thread_num();
    for (const HeadMatMul& matmul : strips) {
      const Operands& operands = matmul.of_thread[thread];
      const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, operands.a.get()},
                                           {DNNL_ARG_WEIGHTS, operands.b.get()},
                                           {DNNL_ARG_DST, operands.c.get()},
                                           {DNNL_ARG_SCRATCHPAD, operands.scratch.get()}};
      const dnnl_status_t status =
          dnnl_primitive_execute(matmul.primitive.get(), streams_[thread].get(), std::size(arguments), arguments);
      if (status != dnnl_success) failure = status;
    }
  }
  const double seconds = SecondsSince(begin);
  if (failure != dnnl_success) throw dnnl::error(failure, "could not execute a matmul of attention");
  return seconds;
}

}  // namespace shale
