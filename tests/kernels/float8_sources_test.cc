// Tests the ops that make fp8 matrices and compute them on the way ([Note: sources of fp8] in kernels/ops/float8.h).
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float8_scales.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/norm.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

using SourceKind = Float8Source::Kind;

// Values that operands of ordinary numbers get at some places.
struct SourceSpecial {
  std::string name;
  std::vector<double> values;
};
const std::vector<SourceSpecial>& SourceSpecials() {
  static const auto& specials = *new std::vector<SourceSpecial>{
      {"Zeros", {}}, {"Infinity", {-HUGE_VAL, 1}}, {"NaN", {std::nan(""), HUGE_VAL}}, {"Outlier", {-30000}}};
  return specials;
}

// A source and its operands. `columns` are those of the matrix, and even with a gradient.
struct SourceOperands {
  SourceKind kind = SourceKind::kNorm;
  GateKind gate = GateKind::kSilu;
  DType act = DType::kBFloat16;
  int64_t rows = 0, columns = 0;
  int64_t gap = 0;  // Between rows of x. Only of a norm.
  float weight_offset = 0;
  const SourceSpecial* special = nullptr;

  int64_t columns_of_x() const { return kind == SourceKind::kGate ? 2 * columns : columns; }
  std::string Name() const {
    std::string name(ToString(kind).data(), ToString(kind).size());
    if (kind != SourceKind::kNorm && gate == GateKind::kGeluTanh) name += "_gelu";
    name += "_" + NameOf(act) + "_" + std::to_string(rows) + "x" + std::to_string(columns);
    if (gap > 0) name += "_strided";
    if (weight_offset != 0) name += "_offset";
    return special == nullptr ? name : name + "_" + special->name;
  }
};

// Returns ordinary numbers, and special ones among them if there are any.
std::vector<double> NumbersOf(int64_t count, double most, const SourceSpecial* special) {
  std::vector<double> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = most * std::sin(0.7 * static_cast<double>(i) + most);
  if (special == nullptr) return numbers;
  if (special->name == "Zeros") numbers.assign(numbers.size(), 0);
  for (size_t i = 0; i < special->values.size(); ++i) {
    numbers[count * (static_cast<int64_t>(i) + 1) / (std::ssize(special->values) + 1)] = special->values[i];
  }
  return numbers;
}

Tensor InputOf(TestMemory& memory, const SourceOperands& s) {
  const int64_t stride = s.columns_of_x() + s.gap;
  return memory.Values(s.act, {s.rows, stride}, NumbersOf(s.rows * stride, 3, s.special))
      .Slice(1, s.gap / 2, s.columns_of_x());
}
Tensor WeightOf(TestMemory& memory, const SourceOperands& s) {
  return memory.Values(s.act, {s.columns}, NumbersOf(s.columns, 1.5, nullptr));
}
Tensor GradientInput(TestMemory& memory, const SourceOperands& s) {
  return memory.Values(s.act, {s.rows, s.columns / 2}, NumbersOf(s.rows * s.columns / 2, 0.5, nullptr));
}

// Returns a source. `rstd` are numbers of its rows, if it is a norm.
Float8Source SourceOf(TestMemory& memory, const SourceOperands& s, const std::vector<double>& rstd) {
  Float8Source source{.kind = s.kind, .weight_offset = s.weight_offset, .gate = s.gate};
  if (s.kind == SourceKind::kNorm) {
    source.weight_C = WeightOf(memory, s);
    source.rstd_R = memory.Values(DType::kFloat32, {s.rows}, rstd);
  } else if (s.kind == SourceKind::kGateGradient) {
    source.d_y_RF = GradientInput(memory, s);
  }
  return source;
}

// What a matrix becomes.
struct SourceOutputs {
  Float8Scales scales = Float8Scales::kOne;
  DType format = DType::kFloat8E4M3;
  bool out = true, transposed = true;
  double maximum = 4;  // Of kOne.

  std::string Name() const {
    return std::string(ToString(scales).data(), ToString(scales).size()) + "_" + NameOf(format) +
           (!transposed ? "_out"
            : !out      ? "_transposed"
                        : "");
  }
};

QuantizeFloat8 QuantizeOf(TestMemory& memory, const Tensor& x, const Float8Source& source, const SourceOutputs& want) {
  QuantizeFloat8 op{.x_RC = x, .scales = want.scales, .source = source};
  const int64_t R = x.dim(0), C = op.columns();
  const bool one = want.scales == Float8Scales::kOne;
  const auto scales = [&](int64_t rows, int64_t columns) {
    const Float8ScaleMatrix matrix = Float8ScaleMatrix::Of(want.scales, rows, columns);
    return one ? Tensor() : memory.Output(DType::kFloat32, {matrix.rows, matrix.columns});
  };
  if (one) {
    op.maximum_1 = memory.Values(DType::kFloat32, {1}, {want.maximum});
    op.scale_1 = memory.Output(DType::kFloat32, {1});
  }
  if (want.out) {
    op.out_RC = memory.Output(want.format, {R, C});
    op.out_scales = scales(R, C);
  }
  if (want.transposed) {
    op.transposed_CR = memory.Output(want.format, {C, R});
    op.transposed_scales = scales(C, R);
  }
  return op;
}

std::vector<double> SomeRstd(int64_t rows) {
  std::vector<double> rstd;
  for (int64_t r = 0; r < rows; ++r) rstd.push_back(0.25 + 0.125 * static_cast<double>(r % 7));
  return rstd;
}

// A number of the matrix that lies in the middle of two neighbors in act, but for errors of fp32, may round to either.
// So the largest one of a part, and its scale, may be off by one unit of act in the last place, and a code may be the
// neighbor of the one that is wanted.
void AllowNeighbors(OpCase& c, DType act, DType format) {
  for (const char* name : {"maximum", "scale", "out_scales", "transposed_scales"}) {
    c.tolerances[name] = {.relative = 2 * UnitOf(act)};
  }
  const bool e4m3 = format == DType::kFloat8E4M3;
  for (const char* name : {"out", "transposed"}) {
    c.tolerances[name] = {.absolute = e4m3 ? 0x1p-9 : 0x1p-16, .relative = e4m3 ? 0x1p-3 : 0x1p-2};
  }
}

OpCase MaximumCase(const SourceOperands& s) {
  OpCase c{.name = "AbsMax_" + s.Name()};
  const Tensor x = InputOf(c.memory, s);
  c.op = AbsMax{x, c.memory.Output(DType::kFloat32, {1}), SourceOf(c.memory, s, SomeRstd(s.rows))};
  AllowNeighbors(c, s.act, DType::kFloat8E4M3);
  return c;
}

OpCase SourceCase(const SourceOperands& s, const SourceOutputs& want) {
  OpCase c{.name = "Quantize_" + s.Name() + "_" + want.Name()};
  const Tensor x = InputOf(c.memory, s);
  c.op = QuantizeOf(c.memory, x, SourceOf(c.memory, s, SomeRstd(s.rows)), want);
  AllowNeighbors(c, s.act, want.format);
  return c;
}

// Returns a source of each kind and of each gate.
std::vector<SourceOperands> KindsOfSources(SourceOperands s) {
  std::vector<SourceOperands> sources;
  for (const SourceKind kind : {SourceKind::kNorm, SourceKind::kGate, SourceKind::kGateGradient}) {
    s.kind = kind;
    for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh}) {
      s.gate = gate;
      if (kind != SourceKind::kNorm || gate == GateKind::kSilu) sources.push_back(s);
    }
  }
  return sources;
}

// Within a pack, with rows that are no whole packs, whose halves are not, with full tiles and with some that are not.
constexpr std::pair<int64_t, int64_t> kSourceShapes[] = {{1, 2},    {3, 130},   {67, 16},   {129, 134}, {16, 1000},
                                                         {40, 256}, {150, 160}, {144, 272}, {17, 24}};

std::vector<OpCase> SourceCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const SourceOperands& s) {
    cases.push_back(MaximumCase(s));
    for (const Float8Scales scales : {Float8Scales::kOne, Float8Scales::kTiles}) {
      cases.push_back(SourceCase(s, {.scales = scales}));
      if (s.kind != SourceKind::kGateGradient) continue;
      cases.push_back(SourceCase(s, {.scales = scales, .format = DType::kFloat8E5M2}));
    }
  };
  for (const DType act : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [rows, columns] : kSourceShapes) {
      if (act == DType::kFloat16 && rows > 100) continue;
      for (const SourceOperands& s : KindsOfSources({.act = act, .rows = rows, .columns = columns})) add(s);
    }
    add({.act = act, .rows = 21, .columns = 64, .gap = 3});
    add({.act = act, .rows = 128, .columns = 144, .gap = 16, .weight_offset = 1});
    for (const SourceSpecial& special : SourceSpecials()) {
      add({.act = act, .rows = 40, .columns = 48, .special = &special});
      add({.act = act, .rows = 9, .columns = 130, .special = &special});
    }
    for (const SourceOperands& s : KindsOfSources({.act = act, .rows = 47, .columns = 144})) {
      cases.push_back(SourceCase(s, {.transposed = false}));
      cases.push_back(SourceCase(s, {.out = false}));
      cases.push_back(SourceCase(s, {.scales = Float8Scales::kBlocks}));
    }
  }
  // Several blocks of packs.
  for (const SourceOperands& s : KindsOfSources({.rows = 300, .columns = 200})) cases.push_back(MaximumCase(s));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Float8Sources, OpConformance, ::testing::ValuesIn(SourceCases()), CaseName);

// Returns the elements of an operand after a backend has run an op.
std::vector<double> OperandAfter(const TestBackend& backend, const TestMemory& memory, const Op& op, const Tensor& t) {
  std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
  const Tensor bound = memory.Bind(t, image.data());
  std::vector<double> elements;
  for (int64_t i = 0; i < bound.elements(); ++i) elements.push_back(ElementOf(bound, i));
  return elements;
}

// Returns the bits of everything that an op writes on a backend, with one NaN in place of all.
std::vector<uint64_t> ResultBits(const TestBackend& backend, const TestMemory& memory, const Op& op) {
  std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
  std::vector<uint64_t> bits;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
    if (!t.present() || access == Access::kRead) return;
    const Tensor bound = memory.Bind(t, image.data());
    for (int64_t i = 0; i < bound.elements(); ++i) {
      const double value = ElementOf(bound, i);
      bits.push_back(std::bit_cast<uint64_t>(std::isnan(value) ? std::nan("") : value));
    }
  });
  return bits;
}

// What the op writes that a source stands for.
struct WrittenMatrix {
  std::vector<double> numbers;
  std::vector<double> rstd;  // Of a norm.
};
WrittenMatrix Write(const TestBackend& backend, const SourceOperands& s) {
  TestMemory memory;
  const Tensor x = InputOf(memory, s), matrix = memory.Output(s.act, {s.rows, s.columns});
  switch (s.kind) {
    case SourceKind::kNorm: {
      const RmsNormForward op{.x = x,
                              .weight_C = WeightOf(memory, s),
                              .y = matrix,
                              .rstd_R = memory.Output(DType::kFloat32, {s.rows}),
                              .weight_offset = s.weight_offset};
      return {OperandAfter(backend, memory, op, matrix), OperandAfter(backend, memory, op, op.rstd_R)};
    }
    case SourceKind::kGate:
      return {OperandAfter(backend, memory, SwiGluForward{.gate_up_T2F = x, .y_TF = matrix, .gate = s.gate}, matrix)};
    default: {
      const SwiGluBackward op{
          .gate_up_T2F = x, .d_y_TF = GradientInput(memory, s), .d_gate_up_T2F = matrix, .gate = s.gate};
      return {OperandAfter(backend, memory, op, matrix)};
    }
  }
}

void ExpectBitsOfWrittenMatrix(const TestBackend& backend, const SourceOperands& s) {
  SCOPED_TRACE(backend.name + " " + s.Name());
  const WrittenMatrix written = Write(backend, s);
  {
    TestMemory memory, other;
    const AbsMax of_matrix{other.Values(s.act, {s.rows, s.columns}, written.numbers),
                           other.Output(DType::kFloat32, {1})};
    const Tensor x = InputOf(memory, s);
    const AbsMax op{x, memory.Output(DType::kFloat32, {1}), SourceOf(memory, s, written.rstd)};
    EXPECT_TRUE(ResultBits(backend, memory, op) == ResultBits(backend, other, of_matrix)) << "AbsMax";
  }
  for (const Float8Scales scales : {Float8Scales::kOne, Float8Scales::kTiles}) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (format == DType::kFloat8E5M2 && s.kind != SourceKind::kGateGradient) continue;
      const SourceOutputs want = {.scales = scales, .format = format};
      TestMemory memory, other;
      const QuantizeFloat8 of_matrix =
          QuantizeOf(other, other.Values(s.act, {s.rows, s.columns}, written.numbers), {}, want);
      const Tensor x = InputOf(memory, s);
      const QuantizeFloat8 op = QuantizeOf(memory, x, SourceOf(memory, s, written.rstd), want);
      EXPECT_TRUE(ResultBits(backend, memory, op) == ResultBits(backend, other, of_matrix)) << want.Name();
    }
  }
}

// The law of sources: on every device, what they give has the bits that it has if another op writes the matrix first.
TEST(Float8Sources, HaveTheBitsOfTheMatrixThatAnotherOpWrites) {
  for (const TestBackend& backend : TestBackends()) {
    for (const DType act : {DType::kBFloat16, DType::kFloat16}) {
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{130, 144}, {33, 134}}) {
        for (const SourceOperands& s : KindsOfSources({.act = act, .rows = rows, .columns = columns})) {
          ExpectBitsOfWrittenMatrix(backend, s);
        }
      }
      ExpectBitsOfWrittenMatrix(backend, {.act = act, .rows = 33, .columns = 144, .gap = 5, .weight_offset = 1});
      for (const SourceSpecial& special : SourceSpecials()) {
        // The rows of a norm that are zeros have an infinite rstd, which edges of tiles must not see.
        for (const SourceOperands& s : KindsOfSources({.act = act, .rows = 20, .columns = 130, .special = &special})) {
          ExpectBitsOfWrittenMatrix(backend, s);
        }
      }
    }
  }
}

// A norm without y writes its statistics, and the sum, with the same bits.
TEST(Float8Sources, ANormWritesItsStatisticsAlone) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    for (const int64_t width : {48, 131, 20000}) {  // The last one takes more than a team of threads.
      for (const bool adds : {false, true}) {
        TestMemory memory;
        const auto rows = [&] { return memory.Random(DType::kBFloat16, {5, width}); };
        RmsNormForward op{.x = rows(),
                          .residual = adds ? rows() : Tensor(),
                          .weight_C = memory.Random(DType::kBFloat16, {width}),
                          .sum = adds ? memory.Output(DType::kBFloat16, {5, width}) : Tensor(),
                          .y = memory.Output(DType::kBFloat16, {5, width}),
                          .rstd_R = memory.Output(DType::kFloat32, {5}),
                          .epsilon = 1e-5f};
        RmsNormForward alone = op;
        alone.y = alone.weight_C = Tensor();
        ASSERT_TRUE(Validate(alone).ok()) << Validate(alone);
        EXPECT_EQ(OperandAfter(backend, memory, alone, op.rstd_R), OperandAfter(backend, memory, op, op.rstd_R));
        if (!adds) continue;
        EXPECT_EQ(OperandAfter(backend, memory, alone, op.sum), OperandAfter(backend, memory, op, op.sum));
      }
    }
  }
}

TEST(Float8Sources, SayWhatTheyWant) {
  const auto act = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kBFloat16, shape); };
  const auto floats = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kFloat32, shape); };
  const AbsMax norm{
      act({5, 14}), floats({1}), {.kind = SourceKind::kNorm, .weight_C = act({14}), .rstd_R = floats({5})}};
  const AbsMax gate{act({5, 14}), floats({1}), {.kind = SourceKind::kGate}};
  const AbsMax gradient{act({5, 14}), floats({1}), {.kind = SourceKind::kGateGradient, .d_y_RF = act({5, 7})}};
  for (const AbsMax& op : {norm, gate, gradient}) EXPECT_TRUE(Validate(op).ok()) << Validate(op);
  const auto refused = [](AbsMax op, const auto& change, const std::string& message) {
    change(op);
    ExpectRefused(op, {message});
  };
  refused(
      norm, [&](AbsMax& op) { op.source.weight_C = act({13}); }, "weight is bf16[13]; wanted bf16[C=14]");
  refused(
      norm, [&](AbsMax& op) { op.source.rstd_R = Tensor(); }, "rstd is missing; wanted f32[R=5]");
  refused(
      norm, [&](AbsMax& op) { op.source.kind = SourceKind::kMatrix; },
      "weight is bf16[14]; wanted none, because the source is matrix");
  refused(
      gate,
      [&](AbsMax& op) {
        op.x_RC = act({5, 13});
      },
      "x is bf16[5, 13]; wanted an even number of columns");
  refused(
      gate, [&](AbsMax& op) { op.x_RC.dtype = DType::kFloat32; },
      "x is f32[5, 14]; wanted bf16 or f16, because the source is gate");
  refused(
      gradient,
      [&](AbsMax& op) {
        op.source.d_y_RF = act({5, 14});
      },
      "d_y is bf16[5, 14]; wanted bf16[R=5, F=7]");
  QuantizeFloat8 quantize{.x_RC = gate.x_RC,
                          .maximum_1 = floats({1}),
                          .out_RC = Tensor::Contiguous(DType::kFloat8E4M3, {5, 7}),
                          .scale_1 = floats({1}),
                          .source = gate.source};
  EXPECT_TRUE(Validate(quantize).ok()) << Validate(quantize);
  quantize.out_RC.dtype = DType::kFloat8E5M2;
  ExpectRefused(quantize, {"out is f8e5m2[5, 7]; wanted f8e4m3, because the source is gate"});

  RmsNormForward statistics{.x = act({5, 14}), .rstd_R = floats({5})};
  EXPECT_TRUE(Validate(statistics).ok()) << Validate(statistics);
  statistics.weight_C = act({14});
  ExpectRefused(statistics, {"y is missing"});
}

}  // namespace
}  // namespace shale::testing
