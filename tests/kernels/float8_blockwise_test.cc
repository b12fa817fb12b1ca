// Tests the op that makes fp8 matrices whose tiles or blocks have scales of their own ([Note: blockwise scales] in
// kernels/float8_scales.h).
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float8.h"
#include "kernels/float8_scales.h"
#include "kernels/ops/float8.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

Tensor PartsScales(TestMemory& memory, Float8Scales scales, int64_t rows, int64_t columns) {
  const Float8ScaleMatrix matrix = Float8ScaleMatrix::Of(scales, rows, columns);
  return memory.Output(DType::kFloat32, {matrix.rows, matrix.columns});
}

enum class PartsOutputs { kOut, kTransposed, kBoth };

struct PartsCase {
  Float8Scales scales;
  DType act = DType::kBFloat16, format = DType::kFloat8E4M3;
  int64_t rows, columns, gap = 0;
  PartsOutputs outputs = PartsOutputs::kBoth;
  std::optional<double> special;  // The value of one number.
};

// Numbers of rows and of columns grow, so that every part has a maximum of its own. The bits are the same everywhere.
OpCase MakePartsCase(const PartsCase& s) {
  OpCase c;
  const char* const of_outputs[] = {"_out", "_transposed", ""};
  c.name = "Quantize_" + NameOf(s.act) + "_" + std::to_string(s.rows) + "x" + std::to_string(s.columns) + "_" +
           std::string(ToString(s.scales)) + "_" + NameOf(s.format) + of_outputs[static_cast<int>(s.outputs)] +
           (s.gap > 0 ? "_strided" : "");
  const int64_t stride = s.columns + s.gap;
  std::vector<double> values(s.rows * stride);
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int64_t i = 0; i < stride; ++i) {
      values[r * stride + i] = std::sin(static_cast<double>(r * stride + i)) * static_cast<double>((r + 1) * (i + 1));
    }
  }
  if (s.special.has_value()) {
    c.name += !std::isfinite(*s.special) ? (std::isnan(*s.special) ? "_NaN" : "_Infinity")
              : *s.special == 0          ? "_zeros"
                                         : "_outlier";
    if (*s.special == 0) values.assign(values.size(), 0);
    values[s.rows / 2 * stride + s.gap / 2 + s.columns / 3] = *s.special;
  }
  QuantizeFloat8 op{.x_RC = c.memory.Values(s.act, {s.rows, stride}, values).Slice(1, s.gap / 2, s.columns),
                    .scales = s.scales};
  if (s.outputs != PartsOutputs::kTransposed) {
    op.out_RC = c.memory.Output(s.format, {s.rows, s.columns});
    op.out_scales = PartsScales(c.memory, s.scales, s.rows, s.columns);
  }
  if (s.outputs != PartsOutputs::kOut) {
    op.transposed_CR = c.memory.Output(s.format, {s.columns, s.rows});
    op.transposed_scales = PartsScales(c.memory, s.scales, s.columns, s.rows);
  }
  c.op = op;
  return c;
}

std::vector<OpCase> PartsCases() {
  struct Shape {
    int64_t rows, columns, gap = 0;
  };
  std::vector<OpCase> cases;
  const auto add = [&](const PartsCase& s) { cases.push_back(MakePartsCase(s)); };
  for (const Float8Scales scales : {Float8Scales::kTiles, Float8Scales::kBlocks}) {
    for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      // Within a part, with full parts and with some that are not, in one row of parts and in several.
      for (const Shape& s : {Shape{1, 1},
                             {3, 130},
                             {1, 17, 3},
                             {128, 128},
                             {129, 131},
                             {16, 1000},
                             {128, 256, 8},
                             {150, 160, 7},
                             {257, 48, 32},
                             {144, 272}}) {
        for (const DType format : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
          add({.scales = scales, .act = act, .format = format, .rows = s.rows, .columns = s.columns, .gap = s.gap});
        }
      }
      for (const PartsOutputs outputs : {PartsOutputs::kOut, PartsOutputs::kTransposed}) {
        for (const int64_t rows : {143, 144}) {
          add({.scales = scales, .act = act, .rows = rows, .columns = 272, .outputs = outputs});
        }
      }
      for (const double special : {0.0, -30000.0, -HUGE_VAL, std::nan("")}) {
        add({.scales = scales, .act = act, .rows = 140, .columns = 144, .special = special});
      }
    }
    add({.scales = scales, .rows = 700, .columns = 16});  // Scales of the transposed matrix need no filling up.
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Float8Blockwise, OpConformance, ::testing::ValuesIn(PartsCases()), CaseName);

TEST(Float8Blockwise, ScalesLieWhereCuBlasLtReadsThem) {
  const auto tiles = Float8ScaleMatrix::Of(Float8Scales::kTiles, 48, 300);
  EXPECT_EQ(tiles.rows, 3);
  EXPECT_EQ(tiles.columns, 48);
  EXPECT_EQ(tiles.PlaceOf(47, 256), 2 * 48 + 47);
  const auto blocks = Float8ScaleMatrix::Of(Float8Scales::kBlocks, 300, 700);
  EXPECT_EQ(blocks.rows, 3);
  EXPECT_EQ(blocks.columns, 8);  // Six blocks, and zeros.
  EXPECT_EQ(blocks.PlaceOf(299, 128), 2 * 8 + 1);
}

// A tile has the codes and the scale that it would have as a matrix of its own, whatever lies beside it.
TEST(Float8Blockwise, AnOutlierCostsItsOwnTileAlone) {
  std::vector<double> numbers(256, 1);
  numbers[200] = 30000;
  TestMemory memory;
  const QuantizeFloat8 op{.x_RC = memory.Values(DType::kBFloat16, {1, 256}, numbers),
                          .out_RC = memory.Output(DType::kFloat8E4M3, {1, 256}),
                          .out_scales = PartsScales(memory, Float8Scales::kTiles, 1, 256),
                          .scales = Float8Scales::kTiles};
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const Tensor out = memory.Bind(op.out_RC, image.data()), scales = memory.Bind(op.out_scales, image.data());
    EXPECT_EQ(ElementOf(out, 0), 448);
    EXPECT_EQ(ElementOf(scales, 0), static_cast<double>(1 / Float8Factor(DType::kFloat8E4M3, 1)));
    EXPECT_EQ(ElementOf(out, 200), 448);
    EXPECT_LT(ElementOf(out, 255), 0.02);
  }
}

TEST(Float8Blockwise, SaysWhatQuantizationWants) {
  const auto matrix = [](DType dtype, int64_t rows, int64_t columns) {
    return Tensor::Contiguous(dtype, {rows, columns});
  };
  const QuantizeFloat8 valid{.x_RC = matrix(DType::kBFloat16, 5, 200),
                             .out_RC = matrix(DType::kFloat8E4M3, 5, 200),
                             .out_scales = matrix(DType::kFloat32, 2, 5),
                             .scales = Float8Scales::kTiles};
  EXPECT_TRUE(Validate(valid).ok()) << Validate(valid);
  const auto refused = [&](const auto& change, const std::string& message) {
    QuantizeFloat8 op = valid;
    change(op);
    ExpectRefused(op, {message});
  };
  const Tensor scalar = Tensor::Contiguous(DType::kFloat32, {1});
  refused([&](QuantizeFloat8& op) { op.scales = Float8Scales::kBlocks; }, "out_scales is f32[2, 5]; wanted f32[1, 4]");
  refused([&](QuantizeFloat8& op) { op.maximum_1 = scalar; },
          "maximum is f32[1]; wanted none, because tiles and blocks have their own scales");
  refused([&](QuantizeFloat8& op) { op.transposed_scales = matrix(DType::kFloat32, 1, 200); },
          "transposed_scales is f32[1, 200]; wanted none");
  refused([&](QuantizeFloat8& op) { op.transposed_CR = matrix(DType::kFloat8E4M3, 200, 5); },
          "transposed_scales is missing; wanted f32[1, 200]");
  refused(
      [&](QuantizeFloat8& op) {
        op.scales = Float8Scales::kOne;
        op.maximum_1 = op.scale_1 = scalar;
      },
      "out_scales is f32[2, 5]; wanted none, because the matrix has one scale");
}

}  // namespace
}  // namespace shale::testing
