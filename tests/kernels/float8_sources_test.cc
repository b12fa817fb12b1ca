// Tests the ops that make fp8 matrices and compute them on the way ([Note: sources of fp8] in kernels/ops/float8.h).
#include <algorithm>
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
#include "kernels/ops/rope.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/position_ids.h"
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

// A source and its operands. `columns` are those of the matrix, and even with the gradient of a gate.
struct SourceOperands {
  SourceKind kind = SourceKind::kNorm;
  GateKind gate = GateKind::kSilu;
  GeluKind gelu = GeluKind::kTanh;
  DType act = DType::kBFloat16;
  int64_t rows = 0, columns = 0;
  int64_t gap = 0;  // Between rows of x. Not with gates.
  float weight_offset = 0;
  const SourceSpecial* special = nullptr;
  bool documents = false;  // Of RoPE: whether sequences hold several.
  int64_t width = 0;       // Of its heads; 0: the test chooses it.

  int64_t columns_of_x() const { return kind == SourceKind::kGate ? 2 * columns : columns; }
  // Returns a rotation of about three quarters of the columns, of two or three sequences if the rows allow that.
  Float8Source::Rotation Rotation() const {
    const int64_t sequences = rows % 3 == 0 ? 3 : rows % 2 == 0 ? 2 : 1;
    const int64_t of_head = width > 0 ? width : columns % 16 == 0 ? 16 : columns >= 12 ? 6 : 2;
    return {.sequence_length = rows / sequences,
            .heads = std::max<int64_t>(1, columns * 3 / 4 / of_head),
            .head_width = of_head,
            .theta = 100,
            .scaling = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 64}};
  }
  std::string Name() const {
    std::string name(ToString(kind).data(), ToString(kind).size());
    if (gate == GateKind::kGeluTanh) name += "_gelu";
    if (gelu == GeluKind::kErf) name += "_erf";
    if (documents) name += "_documents";
    if (width > 0) name += "_heads" + std::to_string(width);
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
  const int64_t F = s.kind == SourceKind::kGeluGradient ? s.columns : s.columns / 2;
  return memory.Values(s.act, {s.rows, F}, NumbersOf(s.rows * F, 0.5, nullptr));
}

Tensor BiasOf(TestMemory& memory, const SourceOperands& s) {
  return memory.Values(s.act, {s.columns}, NumbersOf(s.columns, 0.75, nullptr));
}

// What a norm knows of its rows.
struct RowStatistics {
  std::vector<double> mean, rstd;
};

// Returns a source, with these statistics if it is a norm.
Float8Source SourceOf(TestMemory& memory, const SourceOperands& s, const RowStatistics& rows) {
  Float8Source source{.kind = s.kind, .weight_offset = s.weight_offset, .gate = s.gate, .gelu = s.gelu};
  switch (s.kind) {
    case SourceKind::kLayerNorm:
      source.bias_C = BiasOf(memory, s);
      source.mean_R = memory.Values(DType::kFloat32, {s.rows}, rows.mean);
      [[fallthrough]];
    case SourceKind::kNorm:
      source.weight_C = WeightOf(memory, s);
      source.rstd_R = memory.Values(DType::kFloat32, {s.rows}, rows.rstd);
      break;
    case SourceKind::kRope: {
      source.rotation = s.Rotation();
      const int64_t S = source.rotation.sequence_length;
      if (s.documents) source.position_ids_BS = PositionIds(memory, {5, 1, 33}, s.rows / S, S);
      break;
    }
    case SourceKind::kGeluGradient:
    case SourceKind::kGateGradient: source.d_y_RF = GradientInput(memory, s); break;
    default: break;
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

RowStatistics SomeStatistics(int64_t rows) {
  RowStatistics statistics;
  for (int64_t r = 0; r < rows; ++r) {
    statistics.mean.push_back(0.375 * static_cast<double>(r % 5) - 0.75);
    statistics.rstd.push_back(0.25 + 0.125 * static_cast<double>(r % 7));
  }
  return statistics;
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
  c.op = AbsMax{x, c.memory.Output(DType::kFloat32, {1}), SourceOf(c.memory, s, SomeStatistics(s.rows))};
  AllowNeighbors(c, s.act, DType::kFloat8E4M3);
  return c;
}

OpCase SourceCase(const SourceOperands& s, const SourceOutputs& want) {
  OpCase c{.name = "Quantize_" + s.Name() + "_" + want.Name()};
  const Tensor x = InputOf(c.memory, s);
  c.op = QuantizeOf(c.memory, x, SourceOf(c.memory, s, SomeStatistics(s.rows)), want);
  AllowNeighbors(c, s.act, want.format);
  return c;
}

// Returns a source of each kind, and of each gate and GELU.
std::vector<SourceOperands> KindsOfSources(const SourceOperands& s) {
  std::vector<SourceOperands> sources;
  const auto add = [&](SourceKind kind, const auto& change) {
    SourceOperands& added = sources.emplace_back(s);
    added.kind = kind;
    change(added);
  };
  for (const SourceKind kind : {SourceKind::kNorm, SourceKind::kLayerNorm}) add(kind, [](auto&) {});
  for (const bool documents : {false, true}) {
    add(SourceKind::kRope, [&](SourceOperands& of) { of.documents = documents; });
  }
  for (const GeluKind gelu : {GeluKind::kTanh, GeluKind::kErf}) {
    for (const SourceKind kind : {SourceKind::kGelu, SourceKind::kGeluGradient}) {
      add(kind, [&](SourceOperands& of) { of.gelu = gelu; });
    }
  }
  for (const GateKind gate : {GateKind::kSilu, GateKind::kGeluTanh}) {
    for (const SourceKind kind : {SourceKind::kGate, SourceKind::kGateGradient}) {
      add(kind, [&](SourceOperands& of) { of.gate = gate; });
    }
  }
  return sources;
}

// Returns whether a source is of backward, which may have either format.
bool IsGradient(const SourceOperands& s) { return !Float8Source{.kind = s.kind}.is_of_forward(); }

// Within a pack, with rows that are no whole packs, whose halves are not, with full tiles and with some that are not.
constexpr std::pair<int64_t, int64_t> kSourceShapes[] = {{1, 2},    {3, 130},   {67, 16},   {129, 134}, {16, 1000},
                                                         {40, 256}, {150, 160}, {144, 272}, {17, 24}};

std::vector<OpCase> SourceCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const SourceOperands& s) {
    cases.push_back(MaximumCase(s));
    for (const Float8Scales scales : {Float8Scales::kOne, Float8Scales::kTiles}) {
      cases.push_back(SourceCase(s, {.scales = scales}));
      if (IsGradient(s)) cases.push_back(SourceCase(s, {.scales = scales, .format = DType::kFloat8E5M2}));
    }
  };
  for (const DType act : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [rows, columns] : kSourceShapes) {
      if (act == DType::kFloat16 && rows * columns > 3000) continue;
      for (const SourceOperands& s : KindsOfSources({.act = act, .rows = rows, .columns = columns})) add(s);
    }
    add({.act = act, .rows = 21, .columns = 64, .gap = 3});
    add({.act = act, .rows = 128, .columns = 144, .gap = 16, .weight_offset = 1});
    // Heads as wide as half a tile, as a tile, and wider, so that the pairs of numbers lie in two tiles.
    for (const int64_t width : {64, 128, 256}) {
      add({.kind = SourceKind::kRope, .act = act, .rows = 46, .columns = 400, .documents = true, .width = width});
    }
    for (const SourceKind kind : {SourceKind::kLayerNorm, SourceKind::kRope, SourceKind::kGelu}) {
      add({.kind = kind, .act = act, .rows = 21, .columns = 48, .gap = 3});
    }
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
  RowStatistics rows;  // Of a norm.
};
WrittenMatrix Write(const TestBackend& backend, const SourceOperands& s) {
  TestMemory memory;
  const Tensor x = InputOf(memory, s), matrix = memory.Output(s.act, {s.rows, s.columns});
  const auto written = [&](const Op& op) { return WrittenMatrix{OperandAfter(backend, memory, op, matrix), {}}; };
  switch (s.kind) {
    case SourceKind::kLayerNorm: {
      const LayerNormForward op{.x = x,
                                .weight_C = WeightOf(memory, s),
                                .bias_C = BiasOf(memory, s),
                                .y = matrix,
                                .mean_R = memory.Output(DType::kFloat32, {s.rows}),
                                .rstd_R = memory.Output(DType::kFloat32, {s.rows})};
      return {OperandAfter(backend, memory, op, matrix),
              {OperandAfter(backend, memory, op, op.mean_R), OperandAfter(backend, memory, op, op.rstd_R)}};
    }
    case SourceKind::kRope: return {OperandAfter(backend, memory, SourceOf(memory, s, {}).RopeOf(x), x), {}};
    case SourceKind::kGelu: return written(GeluForward{.x_TF = x, .y_TF = matrix, .kind = s.gelu});
    case SourceKind::kGeluGradient:
      return written(GeluBackward{.x_TF = x, .d_y_TF = GradientInput(memory, s), .d_x_TF = matrix, .kind = s.gelu});
    case SourceKind::kGate: return written(SwiGluForward{.gate_up_T2F = x, .y_TF = matrix, .gate = s.gate});
    case SourceKind::kGateGradient:
      return written(SwiGluBackward{
          .gate_up_T2F = x, .d_y_TF = GradientInput(memory, s), .d_gate_up_T2F = matrix, .gate = s.gate});
    default: {
      const RmsNormForward op{.x = x,
                              .weight_C = WeightOf(memory, s),
                              .y = matrix,
                              .rstd_R = memory.Output(DType::kFloat32, {s.rows}),
                              .weight_offset = s.weight_offset};
      return {OperandAfter(backend, memory, op, matrix), {{}, OperandAfter(backend, memory, op, op.rstd_R)}};
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
    const AbsMax op{x, memory.Output(DType::kFloat32, {1}), SourceOf(memory, s, written.rows)};
    EXPECT_TRUE(ResultBits(backend, memory, op) == ResultBits(backend, other, of_matrix)) << "AbsMax";
  }
  for (const Float8Scales scales : {Float8Scales::kOne, Float8Scales::kTiles}) {
    for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      if (format == DType::kFloat8E5M2 && !IsGradient(s)) continue;
      const SourceOutputs want = {.scales = scales, .format = format};
      TestMemory memory, other;
      const QuantizeFloat8 of_matrix =
          QuantizeOf(other, other.Values(s.act, {s.rows, s.columns}, written.numbers), {}, want);
      const Tensor x = InputOf(memory, s);
      const QuantizeFloat8 op = QuantizeOf(memory, x, SourceOf(memory, s, written.rows), want);
      EXPECT_TRUE(ResultBits(backend, memory, op) == ResultBits(backend, other, of_matrix)) << want.Name();
    }
  }
}

// The law of sources: on every device, what they give has the bits that it has if another op writes the matrix first.
TEST(Float8Sources, HaveTheBitsOfTheMatrixThatAnotherOpWrites) {
  for (const TestBackend& backend : TestBackends()) {
    for (const DType act : {DType::kBFloat16, DType::kFloat16}) {
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{130, 144}, {33, 134}}) {
        if (act == DType::kFloat16 && rows > 100) continue;
        for (const SourceOperands& s : KindsOfSources({.act = act, .rows = rows, .columns = columns})) {
          ExpectBitsOfWrittenMatrix(backend, s);
        }
      }
      ExpectBitsOfWrittenMatrix(backend, {.act = act, .rows = 33, .columns = 144, .gap = 5, .weight_offset = 1});
      for (const int64_t width : {2, 64, 256}) {
        SourceOperands heads = {.kind = SourceKind::kRope, .act = act, .rows = 78, .columns = 400, .width = width};
        heads.documents = width > 2;
        if (act == DType::kFloat16) heads.gap = 8;
        ExpectBitsOfWrittenMatrix(backend, heads);
      }
      for (const SourceSpecial& special : SourceSpecials()) {
        // The rows of a norm that are zeros have an infinite rstd, which edges of tiles must not see.
        for (const SourceOperands& s : KindsOfSources({.act = act, .rows = 12, .columns = 130, .special = &special})) {
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
        LayerNormForward layer{.x = op.x,
                               .residual = op.residual,
                               .weight_C = op.weight_C,
                               .bias_C = memory.Random(DType::kBFloat16, {width}),
                               .sum = op.sum,
                               .y = op.y,
                               .mean_R = memory.Output(DType::kFloat32, {5}),
                               .rstd_R = op.rstd_R,
                               .epsilon = 1e-5f};
        LayerNormForward layer_alone = layer;
        layer_alone.y = layer_alone.weight_C = layer_alone.bias_C = Tensor();
        ASSERT_TRUE(Validate(layer_alone).ok()) << Validate(layer_alone);
        for (const Tensor& t : {layer.mean_R, layer.rstd_R}) {
          EXPECT_EQ(OperandAfter(backend, memory, layer_alone, t), OperandAfter(backend, memory, layer, t));
        }
        if (!adds) continue;
        EXPECT_EQ(OperandAfter(backend, memory, alone, op.sum), OperandAfter(backend, memory, op, op.sum));
        EXPECT_EQ(OperandAfter(backend, memory, layer_alone, op.sum), OperandAfter(backend, memory, layer, op.sum));
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
