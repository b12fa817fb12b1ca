#include "tools/bench_onednn.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

using dnnl::memory;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f32;
}

struct Described {
  memory::desc a, b, c;
  dnnl::matmul::primitive_desc primitive;
};
Described Describe(const ProductSize& size, const dnnl::engine& engine) {
  const memory::desc a({size.m, size.k}, TypeOf(size.dtype),
                       size.transposed_a ? memory::dims{1, size.m} : memory::dims{size.k, 1});
  const memory::desc b({size.k, size.n}, TypeOf(size.dtype), memory::format_tag::any);
  const memory::desc c({size.m, size.n}, TypeOf(size.c_dtype), memory::dims{size.n, 1});
  const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(a, b, c), engine);
  return {primitive.src_desc(), primitive.weights_desc(), primitive.dst_desc(), primitive};
}

}  // namespace

OperandBytes RandomOperand(size_t size_bytes, DType dtype) {
  constexpr size_t kHugePage = size_t{2} << 20;
  OperandBytes bytes(static_cast<std::byte*>(
      std::aligned_alloc(kHugePage, (size_bytes + kHugePage - 1) / kHugePage * kHugePage)));
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

absl::StatusOr<LinearProduct> LinearProduct::Create(const ProductSize& size, const dnnl::engine& engine) {
  const Described described = Describe(size, engine);
  LinearProduct product;
  product.primitive_ = dnnl::matmul(described.primitive);
  const auto bind = [&](int argument, const memory::desc& desc, DType dtype) {
    OperandBytes bytes = RandomOperand(desc.get_size(), dtype);
    if (bytes == nullptr) return false;
    product.arguments_[argument] = memory(desc, engine, bytes.get());
    product.operands_.push_back(std::move(bytes));
    return true;
  };
  // What b holds does not matter, so that it is filled as if it had been packed.
  if (!bind(DNNL_ARG_SRC, described.a, size.dtype) || !bind(DNNL_ARG_WEIGHTS, described.b, size.dtype) ||
      !bind(DNNL_ARG_DST, described.c, size.c_dtype)) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for the operands of a product of M=", size.m, " N=",
                                                     size.n, " K=", size.k));
  }
  return product;
}

double LinearProduct::Run(dnnl::stream& stream) {
  const Clock::time_point begin = Clock::now();
  primitive_.execute(stream, arguments_);
  stream.wait();
  return SecondsSince(begin);
}

AttentionProducts::AttentionProducts(const AttentionSize& size, int threads, const dnnl::engine& engine)
    : size_(size), threads_(threads), engine_(&engine) {}

absl::StatusOr<AttentionProducts> AttentionProducts::Create(const AttentionSize& size, int threads,
                                                            const dnnl::engine& engine) {
  AttentionProducts products(size, threads, engine);
  // Each thread runs primitives of its own.
  omp_set_num_threads(1);
  std::vector<Strips> candidates;
  for (const int64_t length : {32, 64, 128}) candidates.push_back(products.StripsOf(length));
  omp_set_num_threads(threads);

  size_t most_bytes = 0;
  for (const Strips& strips : candidates) {
    for (const Product& product : strips) {
      most_bytes = std::max({most_bytes, product.a.get_size(), product.b.get_size(), product.c.get_size()});
    }
  }
  for (int i = 0; i < 3 * threads; ++i) {
    products.operands_.push_back(RandomOperand(most_bytes, size.dtype));
    if (products.operands_.back() == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for attention over ", size.length, " positions"));
    }
  }
  double least = 0;
  for (const Strips& strips : candidates) {
    products.Run(strips);  // The first execution pays for caches and for waking threads.
    const double seconds = std::min(products.Run(strips), products.Run(strips));
    if (products.fastest_.empty() || seconds < least) {
      products.fastest_ = strips;
      least = seconds;
    }
  }
  return products;
}

AttentionProducts::Strips AttentionProducts::StripsOf(int64_t length) const {
  Strips strips;
  const auto add = [&](int64_t m, int64_t n, int64_t k, bool transposed_a) {
    const Described described = Describe({.m = m, .n = n, .k = k, .transposed_a = transposed_a, .dtype = size_.dtype,
                                          .c_dtype = DType::kFloat32}, *engine_);
    strips.push_back({dnnl::matmul(described.primitive), described.a, described.b, described.c});
  };
  for (int64_t begin = 0; begin < size_.length; begin += length) {
    const int64_t queries = std::min(length, size_.length - begin);
    const int64_t window = size_.window > 0 ? size_.window - 1 : size_.length;
    const int64_t keys = queries + std::min(begin, window), width = size_.width;
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

double AttentionProducts::Run(const Strips& strips) const {
  const Clock::time_point begin = Clock::now();
#pragma omp parallel num_threads(threads_)
  {
    dnnl::stream stream(*engine_);
    const OperandBytes* const operands = &operands_[3 * omp_get_thread_num()];
    std::vector<std::unordered_map<int, memory>> arguments;
    for (const Product& product : strips) {
      arguments.push_back({{DNNL_ARG_SRC, memory(product.a, *engine_, operands[0].get())},
                           {DNNL_ARG_WEIGHTS, memory(product.b, *engine_, operands[1].get())},
                           {DNNL_ARG_DST, memory(product.c, *engine_, operands[2].get())}});
    }
#pragma omp for schedule(dynamic)
    for (int64_t head = 0; head < size_.heads; ++head) {
      for (size_t i = 0; i < strips.size(); ++i) strips[i].primitive.execute(stream, arguments[i]);
    }
  }
  return SecondsSince(begin);
}

}  // namespace shale
