// Tests the formats of fp8, and the ops that make fp8 operands. matmul_test.cc tests matmuls of them.
#include "kernels/float8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/hash.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "tests/kernels/float8_goldens.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr DType kFloat8Formats[] = {DType::kFloat8E4M3, DType::kFloat8E5M2};
constexpr DType kFloat8Acts[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

template <class Element>
uint64_t Digest(const std::vector<Element>& elements) {
  return Fnv1a({reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)});
}

// Returns the codes of numbers, with one code for all NaNs.
template <class Convert>
std::vector<uint8_t> CodesOf(const std::vector<float>& numbers, const Convert& convert) {
  std::vector<uint8_t> codes;
  for (const float x : numbers) {
    const auto converted = convert(x);
    codes.push_back(std::isnan(ToFloat(converted)) ? 0x7F : converted.bits);
  }
  return codes;
}

// Returns the middle of every two neighbors among the finite values, and the numbers right beside it, of both signs.
template <class T>
std::vector<float> MiddlesOf() {
  std::vector<float> middles;
  for (int code = 0; std::isfinite(ToFloat(T{static_cast<uint8_t>(code + 1)})); ++code) {
    const float middle = (ToFloat(T{static_cast<uint8_t>(code)}) + ToFloat(T{static_cast<uint8_t>(code + 1)})) / 2;
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, HUGE_VALF)})
      middles.push_back(x);
  }
  const size_t positive = middles.size();
  for (size_t i = 0; i < positive; ++i) middles.push_back(-middles[i]);
  return middles;
}

template <class T, class Round>
void ExpectGolden(const Float8Golden& golden, const Round& round) {
  std::vector<uint32_t> values;
  for (int code = 0; code < 256; ++code) {
    const float value = ToFloat(T{static_cast<uint8_t>(code)});
    values.push_back(std::isnan(value) ? 0x7FC00000 : std::bit_cast<uint32_t>(value));
  }
  EXPECT_EQ(Digest(values), golden.values);
  std::vector<float> numbers;
  for (uint32_t code = 0; code < 1 << 16; ++code) numbers.push_back(std::bit_cast<float>(code << 16));
  EXPECT_EQ(Digest(CodesOf(numbers, round)), golden.rounded);
  EXPECT_EQ(Digest(CodesOf(numbers, SaturateToFloat8<T>)), golden.saturated);
  EXPECT_EQ(Digest(CodesOf(MiddlesOf<T>(), round)), golden.middles);
  EXPECT_EQ(Digest(CodesOf(MiddlesOf<T>(), SaturateToFloat8<T>)), golden.middles);
}

TEST(Float8, ConvertsAsMlDtypesDoes) {
  ExpectGolden<Float8E4M3>(kE4M3Golden, RoundToFloat8E4M3);
  ExpectGolden<Float8E5M2>(kE5M2Golden, RoundToFloat8E5M2);
}

TEST(Float8, TheFactorMapsTheMaximumToTheLargestValue) {
  EXPECT_EQ(Float8Factor(DType::kFloat8E4M3, 2), 224);
  EXPECT_EQ(Float8Factor(DType::kFloat8E5M2, 2), 28672);
  EXPECT_EQ(Float8Factor(DType::kFloat8E4M3, 0), static_cast<float>(448 / 1e-12));
  EXPECT_EQ(Float8Factor(DType::kFloat8E4M3, HUGE_VALF), 0);
  EXPECT_TRUE(std::isnan(Float8Factor(DType::kFloat8E4M3, std::nanf(""))));
  // Whatever the maximum, its product with the factor rounds to the largest value.
  for (const DType format : kFloat8Formats) {
    for (float maximum = 1e-11f; maximum < 1e30f; maximum *= 1.37f) {
      const float scaled = maximum * Float8Factor(format, maximum);
      EXPECT_EQ(WithFloat8(format, [&](auto code) { return ToFloat(SaturateToFloat8<decltype(code)>(scaled)); }),
                LargestFloat8(format))
          << maximum;
    }
  }
}

// Values that a matrix of ordinary numbers gets at some places.
struct Float8Special {
  std::string name;
  std::vector<double> values;
};
const std::vector<Float8Special>& Float8Specials() {
  static const auto& specials = *new std::vector<Float8Special>{
      {"Zeros", {}},  // All elements are zero.
      {"Infinity", {-kInfinite}},
      {"NaN", {std::nan(""), kInfinite}},
      {"Outlier", {-30000}},
      {"Tiny", {0x1p-133, -0x1p-126, 0x1p-24, -0x1p-16}},  // All others are zero.
  };
  return specials;
}

// Returns a matrix whose rows lie one after another, or with gaps. A special one has its values at places that differ.
Tensor Float8Input(TestMemory& memory, DType act, int64_t rows, int64_t columns, int64_t gap,
                   const Float8Special* special) {
  const int64_t stride = columns + gap;
  if (special == nullptr) return memory.Random(act, {rows, stride}, -3, 3).Slice(1, gap / 2, columns);
  std::vector<double> values(rows * stride);
  const bool sparse = special->name == "Zeros" || special->name == "Tiny";
  for (int64_t i = 0; i < std::ssize(values); ++i) values[i] = sparse ? 0 : std::sin(static_cast<double>(i));
  for (size_t i = 0; i < special->values.size(); ++i) {
    const int64_t row = rows * (static_cast<int64_t>(i) + 1) / (std::ssize(special->values) + 1);
    values[row * stride + gap / 2 + (row * 31 + 5) % columns] = special->values[i];
  }
  return memory.Values(act, {rows, stride}, values).Slice(1, gap / 2, columns);
}

double MaximumOfInput(const TestMemory& memory, const Tensor& x) {
  std::vector<std::byte> image = memory.image();
  const Tensor bound = memory.Bind(x, image.data());
  double maximum = 0;
  for (int64_t i = 0; i < x.elements(); ++i) {
    const double value = std::abs(ElementOf(bound, i));
    maximum = std::isnan(value) || std::isnan(maximum) ? std::nan("") : std::max(maximum, value);
  }
  return maximum;
}

struct Float8Shape {
  int64_t rows, columns, gap = 0;
};
// Within a pack, with rows that are no whole packs, with tiles that are full and with some that are not.
constexpr Float8Shape kFloat8Shapes[] = {{1, 1},        {3, 130},      {1, 17, 3}, {67, 16},
                                         {64, 64, 16},  {129, 131},    {16, 1000}, {128, 256, 8},
                                         {150, 160, 7}, {257, 48, 32}, {144, 272}};

std::string Float8Name(const std::string& op, DType act, const Float8Shape& shape, const std::string& what) {
  return op + "_" + NameOf(act) + "_" + std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
         (shape.gap > 0 ? "_strided" : "") + what;
}

OpCase AbsMaxCase(DType act, const Float8Shape& shape, const Float8Special* special) {
  OpCase c{.name = Float8Name("AbsMax", act, shape, special != nullptr ? "_" + special->name : "")};
  c.op = AbsMax{Float8Input(c.memory, act, shape.rows, shape.columns, shape.gap, special),
                c.memory.Output(DType::kFloat32, {1})};
  return c;
}

enum class Float8Outputs { kOut, kTransposed, kBoth };

// The bits are the same everywhere, since each product is rounded once to fp32 and once to fp8.
OpCase QuantizeCase(DType act, DType format, const Float8Shape& shape, Float8Outputs outputs,
                    const Float8Special* special) {
  const char* const of_outputs[] = {"_out", "_transposed", ""};
  OpCase c{.name = Float8Name("Quantize", act, shape,
                              "_" + NameOf(format) + of_outputs[static_cast<int>(outputs)] +
                                  (special != nullptr ? "_" + special->name : ""))};
  const Tensor x = Float8Input(c.memory, act, shape.rows, shape.columns, shape.gap, special);
  QuantizeFloat8 op{.x_RC = x,
                    .maximum_1 = c.memory.Values(DType::kFloat32, {1}, {MaximumOfInput(c.memory, x)}),
                    .scale_1 = c.memory.Output(DType::kFloat32, {1})};
  if (outputs != Float8Outputs::kTransposed) op.out_RC = c.memory.Output(format, {shape.rows, shape.columns});
  if (outputs != Float8Outputs::kOut) op.transposed_CR = c.memory.Output(format, {shape.columns, shape.rows});
  c.op = op;
  return c;
}

OpCase TransposeCase(DType format, int64_t rows, int64_t columns) {
  OpCase c{.name = Float8Name("Transpose", format, {rows, columns}, "")};
  c.op = TransposeFloat8{c.memory.Random(format, {rows, columns}, -400, 400), c.memory.Output(format, {columns, rows})};
  return c;
}

// A shard of a flat group, and its parameters.
struct Float8Shard {
  std::string name;
  std::vector<ElementRange> parameters;
  int64_t begin, elements, ranks;
};
const std::vector<Float8Shard>& Float8Shards() {
  static const auto& shards = *new std::vector<Float8Shard>{{"whole", {{0, 35}, {40, 46}, {48, 57}}, 0, 60, 1},
                                                            {"inside", {{0, 35}, {40, 46}}, 9, 4, 3},
                                                            {"across", {{0, 35}, {40, 46}, {48, 57}}, 17, 29, 2},
                                                            {"gap", {{0, 35}, {40, 46}}, 36, 3, 5},
                                                            {"past", {{0, 35}}, 64, 32, 3},
                                                            {"empty", {{0, 35}}, 64, 0, 2},
                                                            {"packs", {{0, 4096}, {4096, 12288}}, 4096, 4096, 300},
                                                            {"large", {{3, 155617}}, 0, 155648, 2},
                                                            {"of_large", {{3, 155617}}, 70000, 60001, 3}};
  return shards;
}

// If `special` is not 0, an element of the shard and a maximum of the last rank have it.
OpCase ShardCase(QuantizeShard::Stage stage, DType act, const Float8Shard& shard, double special = 0) {
  const bool quantizes = stage == QuantizeShard::Stage::kQuantize;
  OpCase c{.name = Float8Name(quantizes ? "QuantizeShard" : "MaximaOfShard", act, {1, shard.elements},
                              "_" + shard.name +
                                  (special == 0          ? ""
                                   : std::isnan(special) ? "_NaN"
                                                         : "_Infinity"))};
  const auto Q = std::ssize(shard.parameters);
  std::vector<double> weights(shard.elements), maxima(shard.ranks * (Q + 2));
  for (int64_t i = 0; i < shard.elements; ++i) weights[i] = 3 * std::sin(static_cast<double>(i));
  for (int64_t i = 0; i < std::ssize(maxima); ++i) maxima[i] = i % 7 == 0 ? 0 : 2 + std::cos(static_cast<double>(i));
  if (special != 0) {
    weights[shard.elements / 2] = -special;
    maxima[maxima.size() - 2] = special;
  }
  QuantizeShard op{.stage = stage,
                   .weight_P = c.memory.Values(act, {shard.elements}, weights),
                   .parameters = std::make_shared<const std::vector<ElementRange>>(shard.parameters),
                   .shard_begin = shard.begin};
  if (quantizes) {
    op.maxima_WQ = c.memory.Values(DType::kFloat32, {shard.ranks, Q + 2}, maxima).Slice(1, 1, Q);
    op.out_P = c.memory.Output(DType::kFloat8E4M3, {shard.elements});
    op.scales_Q = c.memory.Output(DType::kFloat32, {Q});
  } else {
    op.maxima_WQ = c.memory.Output(DType::kFloat32, {1, Q});
  }
  c.op = op;
  return c;
}

void AddShardCases(std::vector<OpCase>& cases) {
  for (const auto stage : {QuantizeShard::Stage::kMaxima, QuantizeShard::Stage::kQuantize}) {
    for (const DType act : kFloat8Acts) {
      for (const Float8Shard& shard : Float8Shards()) cases.push_back(ShardCase(stage, act, shard));
      for (const double special : {kInfinite, std::nan("")}) {
        cases.push_back(ShardCase(stage, act, Float8Shards()[2], special));
      }
    }
  }
}

std::vector<OpCase> Float8Cases() {
  std::vector<OpCase> cases;
  AddShardCases(cases);
  for (const DType format : kFloat8Formats) {
    for (const Float8Shape& shape : kFloat8Shapes) cases.push_back(TransposeCase(format, shape.rows, shape.columns));
  }
  for (const DType act : kFloat8Acts) {
    for (const Float8Shape& shape : kFloat8Shapes) {
      cases.push_back(AbsMaxCase(act, shape, nullptr));
      for (const DType format : kFloat8Formats) {
        cases.push_back(QuantizeCase(act, format, shape, Float8Outputs::kBoth, nullptr));
      }
    }
    for (const Float8Outputs outputs : {Float8Outputs::kOut, Float8Outputs::kTransposed}) {
      cases.push_back(QuantizeCase(act, DType::kFloat8E4M3, {48, 144}, outputs, nullptr));
      cases.push_back(QuantizeCase(act, DType::kFloat8E4M3, {47, 144}, outputs, nullptr));
    }
    for (const Float8Special& special : Float8Specials()) {
      cases.push_back(AbsMaxCase(act, {40, 48}, &special));
      for (const DType format : kFloat8Formats) {
        cases.push_back(QuantizeCase(act, format, {40, 48}, Float8Outputs::kBoth, &special));
      }
    }
  }
  cases.push_back(AbsMaxCase(DType::kBFloat16, {300, 200}, nullptr));  // Several blocks of packs.
  cases.push_back(AbsMaxCase(DType::kBFloat16, {300, 200, 8}, nullptr));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Float8, OpConformance, ::testing::ValuesIn(Float8Cases()), CaseName);

// Returns the elements of an operand after a backend has run an op.
std::vector<double> ElementsAfter(const TestBackend& backend, const TestMemory& memory, const Op& op, const Tensor& t) {
  std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
  const Tensor bound = memory.Bind(t, image.data());
  std::vector<double> elements;
  for (int64_t i = 0; i < bound.elements(); ++i) elements.push_back(ElementOf(bound, i));
  return elements;
}

// Returns what the ranks compute in one stage, one after another: what `output` returns of the op.
template <class Output>
std::vector<double> OfShards(const TestBackend& backend, QuantizeShard op, absl::Span<const double> weights,
                             int64_t shard, const std::vector<double>& maxima, const Output& output) {
  std::vector<double> all;
  const int64_t ranks = std::ssize(weights) / shard, Q = std::ssize(*op.parameters);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    TestMemory memory;
    op.shard_begin = rank * shard;
    op.weight_P = memory.Values(DType::kBFloat16, {shard}, weights.subspan(op.shard_begin, shard));
    if (op.stage == QuantizeShard::Stage::kMaxima) {
      op.maxima_WQ = memory.Output(DType::kFloat32, {1, Q});
    } else {
      op.maxima_WQ = memory.Values(DType::kFloat32, {ranks, Q}, maxima);
      op.out_P = memory.Output(DType::kFloat8E4M3, {shard});
      op.scales_Q = memory.Output(DType::kFloat32, {Q});
    }
    for (const double x : ElementsAfter(backend, memory, op, output(op))) all.push_back(x);
  }
  return all;
}

// The ranks have a matrix of 23 x 48 and, after a gap, one of 16 x 16. They find the codes and the scales of whole
// matrices, although shards begin inside of rows, and the last rank may have elements of no matrix.
TEST(Float8, ShardsOfAGroupHaveTheCodesOfWholeParameters) {
  const std::vector<ElementRange> parameters = {{0, 23 * 48}, {1152, 1152 + 256}};
  QuantizeShard op{.parameters = std::make_shared<const std::vector<ElementRange>>(parameters)};
  for (const int64_t shard : {512, 704, 1408}) {
    std::vector<double> weights(3 * shard, 100);
    for (const ElementRange& range : parameters) {
      for (int64_t i = range.begin; i < range.end; ++i) {
        weights[i] = ToFloat(RoundToBFloat16(static_cast<float>(range.end * std::sin(static_cast<double>(i)))));
      }
    }
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name + " " + std::to_string(shard));
      op.stage = QuantizeShard::Stage::kMaxima;
      const std::vector<double> maxima =
          OfShards(backend, op, weights, shard, {}, [](const QuantizeShard& of) { return of.maxima_WQ; });
      op.stage = QuantizeShard::Stage::kQuantize;
      const std::vector<double> codes =
          OfShards(backend, op, weights, shard, maxima, [](const QuantizeShard& of) { return of.out_P; });
      const std::vector<double> scales =
          OfShards(backend, op, weights, shard, maxima, [](const QuantizeShard& of) { return of.scales_Q; });
      std::vector<double> wanted(weights.size(), 0);
      for (size_t q = 0; q < parameters.size(); ++q) {
        const auto [begin, end] = parameters[q];
        TestMemory memory;
        const Tensor x =
            memory.Values(DType::kBFloat16, {1, end - begin}, absl::MakeConstSpan(weights).subspan(begin, end - begin));
        const QuantizeFloat8 whole{.x_RC = x,
                                   .maximum_1 = memory.Values(DType::kFloat32, {1}, {MaximumOfInput(memory, x)}),
                                   .out_RC = memory.Output(DType::kFloat8E4M3, {1, end - begin}),
                                   .scale_1 = memory.Output(DType::kFloat32, {1})};
        const std::vector<double> of_whole = ElementsAfter(backend, memory, whole, whole.out_RC);
        std::copy(of_whole.begin(), of_whole.end(), wanted.begin() + begin);
        const double scale = ElementsAfter(backend, memory, whole, whole.scale_1)[0];
        for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(scales[rank * parameters.size() + q], scale);
      }
      EXPECT_EQ(codes, wanted);
    }
  }
}

// Every number of 16 bits becomes the code that the formats' definition gives, on every backend.
TEST(Float8, EveryBFloat16IsQuantizedExactly) {
  for (const DType format : kFloat8Formats) {
    std::vector<double> numbers;
    for (uint32_t code = 0; code < 1 << 16; ++code) numbers.push_back(std::bit_cast<float>(code << 16));
    TestMemory memory;
    // With this maximum the factor is 1.
    const QuantizeFloat8 op{.x_RC = memory.Values(DType::kBFloat16, {256, 256}, numbers),
                            .maximum_1 = memory.Values(DType::kFloat32, {1}, {LargestFloat8(format)}),
                            .out_RC = memory.Output(format, {256, 256}),
                            .scale_1 = memory.Output(DType::kFloat32, {1})};
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name);
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor out = memory.Bind(op.out_RC, image.data());
      EXPECT_EQ(ElementOf(memory.Bind(op.scale_1, image.data()), 0), 1);
      for (int64_t i = 0; i < out.elements(); ++i) {
        const double value = ElementOf(out, i), x = numbers[i];
        if (std::isnan(x)) {
          ASSERT_TRUE(std::isnan(value)) << i;
          continue;
        }
        const double wanted = WithFloat8(format, [&](auto code) -> double {
          return ToFloat(SaturateToFloat8<decltype(code)>(static_cast<float>(x)));
        });
        ASSERT_EQ(value, wanted) << x;
        ASSERT_EQ(std::signbit(value), std::signbit(x)) << x;
      }
    }
  }
}

TEST(Float8, SaysWhatMatMulsWant) {
  constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
  const auto matrix = [](DType dtype, int64_t rows, int64_t columns) {
    return Tensor::Contiguous(dtype, {rows, columns});
  };
  const Tensor scale = Tensor::Contiguous(DType::kFloat32, {1});
  const MatMul valid{.a = matrix(kE4M3, 5, 32),
                     .b = matrix(kE4M3, 48, 32),
                     .c_MN = matrix(DType::kFloat16, 5, 48),
                     .scale_a = scale,
                     .scale_b = scale,
                     .transpose_b = true,
                     .fast_accumulation = true};
  const auto refused = [&](const auto& change, const std::string& message) {
    MatMul op = valid;
    change(op);
    ExpectRefused(op, {message});
  };
  const auto accepted = [&](const auto& change) {
    MatMul op = valid;
    change(op);
    EXPECT_TRUE(Validate(op).ok()) << Validate(op);
  };
  accepted([&](MatMul&) {});
  accepted([&](MatMul& op) { op.a.dtype = kE5M2; });
  accepted([&](MatMul& op) { op.b.dtype = kE5M2; });
  accepted([&](MatMul& op) { op.c_MN.dtype = DType::kFloat32, op.accumulate = true; });
  accepted([&](MatMul& op) { op.bias_N = Tensor::Contiguous(DType::kFloat16, {48}); });
  accepted([&](MatMul& op) {
    op.bias_N = Tensor::Contiguous(DType::kBFloat16, {48});
    op.c_MN.dtype = DType::kFloat32;
  });
  refused([&](MatMul& op) { op.a.dtype = op.b.dtype = kE5M2; },
          "a is f8e5m2[5, 32] and b is f8e5m2[48, 32]; wanted one of them in f8e4m3");
  refused([&](MatMul& op) { op.b.dtype = DType::kBFloat16; },
          "b is bf16[48, 32]; wanted f8e4m3 or f8e5m2, as the other matrix is fp8");
  refused([&](MatMul& op) { op.a.dtype = DType::kBFloat16; }, "wanted f32, bf16 or f16 [N, K=32]");
  refused([&](MatMul& op) { op.transpose_b = false; },
          "transpose_a is 0 and transpose_b is 0; wanted transpose_b alone");
  refused([&](MatMul& op) { op.transpose_a = true; },
          "transpose_a is 1 and transpose_b is 1; wanted transpose_b alone");
  refused([&](MatMul& op) { op.scale_b = Tensor(); }, "scale_b is missing; wanted f32[1]");
  refused([&](MatMul& op) { op.scale = 2; }, "scale is 2 for fp8 matrices; wanted 1");
  refused([&](MatMul& op) { op.packed_b = Tensor::Contiguous(DType::kInt16, {64}); },
          "packed_b is given for fp8 matrices; wanted none");
  refused([&](MatMul& op) { op.a = matrix(kE4M3, 5, 24), op.b = matrix(kE4M3, 48, 24); },
          "a is f8e4m3[5, 24]; wanted K to be a multiple of 16");
  refused([&](MatMul& op) { op.b = matrix(kE4M3, 40, 32), op.c_MN = matrix(DType::kFloat16, 5, 40); },
          "b is f8e4m3[40, 32]; wanted N to be a multiple of 16");
  refused([&](MatMul& op) { op.a = matrix(kE4M3, 5, 40).Slice(1, 0, 32); },
          "a has rows 40 elements apart; wanted a multiple of 16");
  refused([&](MatMul& op) { op.bias_N = Tensor::Contiguous(DType::kBFloat16, {48}); },
          "c is f16[5, 48]; wanted bf16[M=5, N=48]");
}

TEST(Float8, SaysWhatQuantizationWants) {
  const Tensor scale = Tensor::Contiguous(DType::kFloat32, {1});
  QuantizeFloat8 quantize{.x_RC = Tensor::Contiguous(DType::kBFloat16, {5, 7}), .maximum_1 = scale, .scale_1 = scale};
  ExpectRefused(quantize, {"out and transposed are both missing"});
  quantize.transposed_CR = Tensor::Contiguous(DType::kUInt8, {7, 5});
  ExpectRefused(quantize, {"transposed is u8[7, 5]; wanted f8e4m3 or f8e5m2"});
  quantize.transposed_CR.dtype = DType::kFloat8E4M3;
  EXPECT_TRUE(Validate(quantize).ok()) << Validate(quantize);
  quantize.out_RC = Tensor::Contiguous(DType::kFloat8E5M2, {5, 7});
  ExpectRefused(quantize, {"transposed is f8e4m3[7, 5]; wanted f8e5m2[C=7, R=5]"});

  TransposeFloat8 transpose{Tensor::Contiguous(DType::kUInt8, {5, 7}), Tensor::Contiguous(DType::kFloat8E5M2, {7, 5})};
  ExpectRefused(transpose, {"x is u8[5, 7]; wanted f8e4m3 or f8e5m2"});
  transpose.x_RC.dtype = DType::kFloat8E4M3;
  ExpectRefused(transpose, {"y is f8e5m2[7, 5]; wanted f8e4m3[C=7, R=5]"});

  QuantizeShard shard{.weight_P = Tensor::Contiguous(DType::kBFloat16, {13}),
                      .maxima_WQ = Tensor::Contiguous(DType::kFloat32, {3, 1})};
  ExpectRefused(shard, {"parameters is null"});
  shard.parameters = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{4, 9}, {8, 12}});
  ExpectRefused(shard, {"maxima is f32[3, 1]; wanted f32[W=1, Q=2]"});
  shard.maxima_WQ = Tensor::Contiguous(DType::kFloat32, {1, 2});
  ExpectRefused(shard, {"parameters has [8, 12) after a range that ends at 9"});
}

}  // namespace
}  // namespace shale::testing
