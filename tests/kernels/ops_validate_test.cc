// Tests that Validate looks at every operand of every op, and names what it refuses.
#include <limits>
#include <set>
#include <type_traits>

#include "gtest/gtest.h"
#include "kernels/counter_random.h"
#include "kernels/ops.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/valid_ops.h"

namespace shale::testing {
namespace {

std::string Text(absl::string_view view) { return std::string(view.data(), view.size()); }

// Calls body(number, name, tensor, access) for the present operands of `op`.
template <class AnyOp, class Body>
void ForOperands(AnyOp& op, const Body& body) {
  using AnyTensor = std::conditional_t<std::is_const_v<AnyOp>, const Tensor, Tensor>;
  int number = 0;
  VisitOperands(op, [&](absl::string_view name, AnyTensor& tensor, Access access) {
    if (tensor.present()) body(number, Text(name), tensor, access);
    ++number;
  });
}

// Returns a copy of `op` whose operand `number` was changed by `change`.
template <class Change>
Op With(const Op& op, int number, const Change& change) {
  Op changed = op;
  ForOperands(changed, [&](int n, const std::string&, Tensor& t, Access) {
    if (n == number) change(t);
  });
  return changed;
}

TEST(Validate, AcceptsOneOfEveryOp) {
  std::set<size_t> kinds;
  for (const Op& op : ValidOps()) {
    EXPECT_TRUE(Validate(op).ok()) << Validate(op);
    kinds.insert(op.kinds().index());
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<OpKinds::variant>);
}

TEST(Validate, NamesAnOperandOfTheWrongRank) {
  for (const Op& op : ValidOps()) {
    ForOperands(op, [&](int number, const std::string& name, const Tensor&, Access) {
      const Op wrong = With(op, number, [](Tensor& t) {
        if (t.rank == Tensor::kMaxRank) {
          --t.rank;
        } else {
          t.shape[t.rank] = 1;
          t.strides[t.rank++] = 1;
        }
      });
      // Copy and Add take any rank, and the rank of x tells a norm whether rows have heads.
      const bool free = op.Is<Copy>() || op.Is<Add>();
      ExpectRefused(wrong, free || name == "x" ? std::vector<std::string>{} : std::vector<std::string>{name + " is "});
    });
  }
}

TEST(Validate, NamesAnOperandOfTheWrongDType) {
  for (const Op& op : ValidOps()) {
    ForOperands(op, [&](int number, const std::string& name, const Tensor& operand, Access) {
      const DType other = operand.dtype == DType::kInt64 ? DType::kFloat32 : DType::kInt64;
      const Op wrong = With(op, number, [&](Tensor& t) { t.dtype = other; });
      ExpectRefused(wrong, {name + " is ", Text(ToString(other)) + "[", "wanted "});
    });
  }
}

TEST(Validate, DemandsEveryOperandThatIsNotOptional) {
  const std::set<std::string> optional = {"EmbeddingForward.positions",
                                          "EmbeddingForward.position_ids",
                                          "EmbeddingForward.begins",
                                          "EmbeddingBackward.d_positions",
                                          "Rope.position_ids",
                                          "Rope.begins",
                                          "AttentionForward.position_ids",
                                          "AttentionBackward.position_ids",
                                          "MatMul.bias",
                                          "MatMul.packed_b",
                                          "AbsMax.position_ids",
                                          "QuantizeFloat8.out",
                                          "QuantizeFloat8.transposed",
                                          "RmsNormBackward.d_residual",
                                          "RmsNormBackward.d_weight",
                                          "LayerNormBackward.d_residual",
                                          "LayerNormBackward.d_weight",
                                          "LayerNormBackward.d_bias",
                                          "SwiGluBackward.y",
                                          "GeluBackward.y",
                                          "Accumulate.micro_batch",
                                          "CrossEntropy.weights",
                                          "MeanFactor.weight_total",
                                          "SquaredError.d_prediction",
                                          "SquaredError.weights"};
  for (const Op& op : ValidOps()) {
    ForOperands(op, [&](int number, const std::string& name, const Tensor&, Access) {
      const Op without = With(op, number, [](Tensor& t) { t = Tensor(); });
      // Blockwise scales are refused without their matrix.
      const auto* quantize = op.As<QuantizeFloat8>();
      const bool paired = quantize != nullptr && quantize->scales != Float8Scales::kOne;
      const bool alone = quantize != nullptr && !(quantize->out_RC.present() && quantize->transposed_CR.present());
      if (!paired && !alone && optional.count(Text(shale::NameOf(op)) + "." + name) > 0) {
        EXPECT_TRUE(Validate(without).ok()) << Validate(without);
      } else {
        ExpectRefused(without, {});
      }
    });
  }
}

// Returns the operands whose rows may be strided. All others must be contiguous.
std::set<std::string> StridedOperands() {
  return {"MatMul.a",
          "MatMul.b",
          "MatMul.c",
          "BiasBackward.d_out",
          "AbsMax.x",
          "QuantizeFloat8.x",
          "QuantizeShard.maxima",
          "Rope.x",
          "AttentionForward.q",
          "AttentionForward.k",
          "AttentionForward.v",
          "AttentionForward.out",
          "CachedAttention.q",
          "CachedAttention.k",
          "CachedAttention.v",
          "CachedAttention.out",
          "AttentionBackward.q",
          "AttentionBackward.k",
          "AttentionBackward.v",
          "AttentionBackward.out",
          "AttentionBackward.d_out",
          "AttentionBackward.d_q",
          "AttentionBackward.d_k",
          "AttentionBackward.d_v",
          "SquaredError.targets",
          "RmsNormForward.x",
          "RmsNormForward.y",
          "RmsNormBackward.x",
          "RmsNormBackward.d_y",
          "RmsNormBackward.d_x",
          "RmsNormBackward.d_residual",
          "LayerNormForward.x",
          "LayerNormForward.y",
          "LayerNormBackward.x",
          "LayerNormBackward.d_y",
          "LayerNormBackward.d_x",
          "LayerNormBackward.d_residual"};
}

// Returns whether an op quantizes what it computes of gates, which must be contiguous.
bool QuantizesGates(const Op& op) {
  const auto* quantize = op.As<QuantizeFloat8>();
  return quantize != nullptr && quantize->source.kind >= Float8Source::Kind::kGate;
}

TEST(Validate, DemandsDenseOperandsWhereItSaysSo) {
  const std::set<std::string> strided = StridedOperands();
  for (const Op& op : ValidOps()) {
    ForOperands(op, [&](int number, const std::string& name, const Tensor& operand, Access) {
      if (operand.rank < 2) return;
      const Op wide = With(op, number, [](Tensor& t) {
        for (int i = 0; i < t.rank - 1; ++i) t.strides[i] *= 2;
      });
      if (strided.count(Text(shale::NameOf(op)) + "." + name) > 0 && !QuantizesGates(op)) {
        EXPECT_TRUE(Validate(wide).ok()) << Validate(wide);
      } else {
        ExpectRefused(wide, {name + " is "});
      }
      // Columns two apart, and rows on top of one another, are refused for every operand.
      ExpectRefused(With(op, number,
                         [](Tensor& t) {
                           for (int i = 0; i < t.rank; ++i) t.strides[i] *= 2;
                         }),
                    {name + " is "});
      if (operand.dim(0) == 1) return;
      ExpectRefused(With(op, number, [](Tensor& t) { t.strides[0] = 1; }), {name + " is "});
    });
  }
}

TEST(Validate, RefusesOutputsThatOverlapAnything) {
  const std::set<std::string> same_view = {"RmsNormForward.y.x",
                                           "LayerNormForward.y.x",
                                           "RmsNormBackward.d_x.d_y",
                                           "RmsNormBackward.d_x.d_residual",
                                           "LayerNormBackward.d_x.d_y",
                                           "LayerNormBackward.d_x.d_residual",
                                           "SwiGluBackward.d_gate_up.gate_up",
                                           "SwiGluBackward.y.d_y",
                                           "SquaredError.d_prediction.prediction",
                                           "GeluBackward.d_x.d_y",
                                           "GeluBackward.y.x",
                                           "Add.out.a",
                                           "Add.out.b",
                                           "DivideByNorm.out.x",
                                           "MatrixPolynomial.out.x",
                                           "MatrixPolynomial.out.y"};
  for (const Op& op : ValidOps()) {
    ForOperands(op, [&](int out_number, const std::string& out_name, const Tensor& out, Access access) {
      if (access == Access::kRead) return;
      ForOperands(op, [&](int other_number, const std::string& other_name, const Tensor&, Access) {
        if (other_number == out_number) return;
        const Op overlapping = With(op, other_number, [&](Tensor& t) { t.where = out.where; });
        const std::string key = Text(shale::NameOf(op)) + "." + out_name + "." + other_name;
        if (same_view.count(key) > 0) {
          EXPECT_TRUE(Validate(overlapping).ok()) << Validate(overlapping);
          // One element further it is no longer the same view.
          ExpectRefused(With(op, other_number,
                             [&](Tensor& t) {
                               t.where = out.where;
                               t.Advance(1);
                             }),
                        {out_name, other_name, "wanted the same view"});
        } else {
          ExpectRefused(overlapping, {out_name, other_name, "overlaps"});
        }
      });
    });
  }
}

TEST(Validate, SaysWhatItWantedAndFound) {
  RmsNormForward op;
  op.x = Tensor::Contiguous(DType::kBFloat16, {6, 16});
  op.weight_C = Tensor::Contiguous(DType::kBFloat16, {8});
  const absl::Status status = Validate(op);
  EXPECT_EQ(Text(status.message()), "RmsNormForward: weight is bf16[8]; wanted bf16[C=16]");
}

// The slices of a fused matrix interleave in memory and share no byte.
TEST(Validate, KnowsThatColumnsOfOneMatrixDoNotOverlap) {
  constexpr int64_t kTokens = 6, kHeads = 4, kGroups = 2, kWidth = 8, kRow = (kHeads + 2 * kGroups) * kWidth;
  const auto columns = [&](int32_t symbol, int64_t begin, int64_t heads) {
    Tensor fused = Tensor::Contiguous(DType::kBFloat16, {kTokens, kRow});
    fused.where.symbol = symbol;
    return fused.Slice(1, begin * kWidth, heads * kWidth).SplitLast(heads, kWidth).SplitFirst(2);
  };
  const auto attention = [&](int64_t first_k) {
    AttentionBackward op;
    op.q_BSHD = columns(0, 0, kHeads);
    op.k_BSGD = columns(0, kHeads, kGroups);
    op.v_BSGD = columns(0, kHeads + kGroups, kGroups);
    op.out_BSHD = op.d_out_BSHD = Tensor::Contiguous(DType::kBFloat16, {2, 3, kHeads, kWidth});
    op.lse_BHS = Tensor::Contiguous(DType::kFloat32, {2, kHeads, 3});
    op.d_q_BSHD = columns(1, 0, kHeads);
    op.d_k_BSGD = columns(1, first_k, kGroups);
    op.d_v_BSGD = columns(1, kHeads + kGroups, kGroups);
    return op;
  };
  EXPECT_TRUE(Validate(attention(kHeads)).ok()) << Validate(attention(kHeads));
  ExpectRefused(attention(kHeads - 1), {"d_q overlaps d_k"});
  ExpectRefused(attention(kHeads + 1), {"d_k overlaps d_v"});
  // Bound operands are compared by address.
  std::vector<std::byte> memory(kTokens * kRow * 2);
  AttentionBackward bound = attention(kHeads);
  bound.d_q_BSHD.data = bound.d_v_BSGD.data = memory.data();
  ExpectRefused(bound, {"d_q overlaps d_v"});
}

// Returns the first of ValidOps that is of a kind.
template <class Kind>
Kind Valid() {
  for (const Op& op : ValidOps()) {
    if (const auto* found = op.As<Kind>()) return *found;
  }
  ADD_FAILURE() << Kind::kName << " is none of ValidOps";
  return {};
}

TEST(Validate, RefusesContradictionsOfMatMuls) {
  MatMul matmul = Valid<MatMul>();
  matmul.c_MN.dtype = DType::kFloat32;
  matmul.accumulate = true;
  ExpectRefused(matmul, {"bias", "accumulate"});
  matmul.accumulate = false;
  matmul.scale = 2;
  ExpectRefused(matmul, {"bias", "scale 2"});
  matmul.bias_N = Tensor();
  EXPECT_TRUE(Validate(matmul).ok()) << Validate(matmul);
  matmul.scale = std::numeric_limits<float>::infinity();
  ExpectRefused(matmul, {"scale is inf; wanted a finite number"});

  matmul = Valid<MatMul>();
  matmul.b_is_packed = true;
  ExpectRefused(matmul, {"packed_b is missing"});
  matmul.packed_b = Tensor::Contiguous(DType::kFloat32, {64});
  ExpectRefused(matmul, {"packed_b is f32[64]", "wanted i16"});
  matmul.packed_b.dtype = DType::kInt16;
  EXPECT_TRUE(Validate(matmul).ok()) << Validate(matmul);

  matmul = Valid<MatMul>();
  matmul.fast_accumulation = true;
  ExpectRefused(matmul, {"fast_accumulation is set, and a is bf16[6, 5]; wanted it for fp8 matrices only"});
  matmul.fast_accumulation = false;
  matmul.scale_b = Tensor::Contiguous(DType::kFloat32, {1});
  ExpectRefused(matmul, {"scale_b is given, and a is bf16[6, 5]; wanted it for fp8 matrices only"});
}

TEST(Validate, RefusesContradictionsOfAttention) {
  AttentionForward attention = Valid<AttentionForward>();
  attention.window = -1;
  ExpectRefused(attention, {"window is -1"});
  attention.window = 5;
  EXPECT_TRUE(Validate(attention).ok()) << Validate(attention);
  attention.causal = false;
  ExpectRefused(attention, {"window is 5 in attention that is not causal; wanted 0 (none)"});
  attention.window = 0;
  ExpectRefused(attention, {"position_ids is given in attention that is not causal; wanted none"});
  attention.position_ids_BS = Tensor();
  EXPECT_TRUE(Validate(attention).ok()) << Validate(attention);
  attention = Valid<AttentionForward>();
  attention.scale = 0;
  ExpectRefused(attention, {"scale is 0; wanted a number above 0"});
}

TEST(Validate, RefusesContradictionsOfSums) {
  Accumulate sum = Valid<Accumulate>();
  sum.total_N.dtype = DType::kBFloat16;
  ExpectRefused(sum, {"update_count is missing"});
  sum.update_count_1 = Tensor::Contiguous(DType::kInt64, {1});
  sum.update_count_1.where.symbol = 9;
  ExpectRefused(sum, {"stream is 0", "GradientStream"});
  sum.stream = GradientStream(0);
  EXPECT_TRUE(Validate(sum).ok()) << Validate(sum);
  sum.shard_begin = 4;
  ExpectRefused(sum, {"shard_begin is 4", "multiple of 8"});
  sum.shard_begin = 0;
  sum.shard_stride = 8;
  ExpectRefused(sum, {"shard_stride is 8", "13"});
  sum.shard_stride = 16;
  EXPECT_TRUE(Validate(sum).ok()) << Validate(sum);
  sum.part_begin = 8;
  ExpectRefused(sum, {"shard_stride is 16", "21"});
  sum.shard_stride = 24;
  EXPECT_TRUE(Validate(sum).ok()) << Validate(sum);
  sum.part_begin = 4;
  ExpectRefused(sum, {"part_begin is 4", "multiple of 8"});
  sum.total_N.dtype = DType::kFloat32;
  ExpectRefused(sum, {"update_count is given for an f32 total"});
}

TEST(Validate, RefusesContradictions) {
  RmsNormForward norm = Valid<RmsNormForward>();
  norm.sum = Tensor();
  ExpectRefused(norm, {"residual is given and sum is missing"});

  EmbeddingForward embedding = Valid<EmbeddingForward>();
  embedding.positions_PC.shape[0] = 2;
  ExpectRefused(embedding, {"positions has 2 rows", "S=3"});

  Rope rope = Valid<Rope>();
  rope.x_BSHD = Tensor::Contiguous(DType::kFloat32, {1, 2, 3, 5});
  rope.position_ids_BS = Tensor();
  ExpectRefused(rope, {"heads have the width 5"});

  CrossEntropy loss = Valid<CrossEntropy>();
  loss.scale_1 = Tensor();
  ExpectRefused(loss, {"scale is missing"});
  loss.gradient = false;
  EXPECT_TRUE(Validate(loss).ok()) << Validate(loss);

  ZeroRanges zero = Valid<ZeroRanges>();
  zero.ranges = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{4, 14}});
  ExpectRefused(zero, {"ranges ends at 14", "N=13"});
}

TEST(Flops, CountMatMulsAndAttentionOnly) {
  for (const Op& op : ValidOps()) {
    const bool counted =
        op.Is<MatMul>() || op.Is<AttentionForward>() || op.Is<AttentionBackward>() || op.Is<CachedAttention>();
    EXPECT_EQ(FlopsOf(op) > 0, counted) << Text(shale::NameOf(op));
  }
  MatMul matmul;
  matmul.a = Tensor::Contiguous(DType::kFloat32, {5, 3});
  matmul.c_MN = Tensor::Contiguous(DType::kFloat32, {3, 7});
  matmul.transpose_a = true;
  EXPECT_EQ(FlopsOf(matmul), 2 * 3 * 5 * 7);
  // 4 queries see 1 + 2 + 3 + 4 keys, or 1 + 2 + 2 + 2 through a window of two, or 4 each if the op is not causal. Each
  // of two matmuls takes 2 FLOPs per pair and element of the width.
  AttentionForward attention;
  attention.q_BSHD = Tensor::Contiguous(DType::kFloat32, {2, 4, 3, 8});
  EXPECT_EQ(FlopsOf(attention), 2 * 3 * 10 * 4 * 8);
  attention.window = 2;
  EXPECT_EQ(FlopsOf(attention), 2 * 3 * 7 * 4 * 8);
  attention.window = 100;
  EXPECT_EQ(FlopsOf(attention), 2 * 3 * 10 * 4 * 8);
  attention.window = 0;
  attention.causal = false;
  EXPECT_EQ(FlopsOf(attention), 2 * 3 * 16 * 4 * 8);
}

// Returns the bytes of the operands of an op with this access, each counted once.
double BytesOf(const Op& op, Access direction) {
  double bytes = 0;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
    if (access == direction || access == Access::kReadWrite) {
      bytes += static_cast<double>(t.elements() * SizeOf(t.dtype));
    }
  });
  return bytes;
}

TEST(Traffic, IsOfWholeOperandsUnlessAnOpSaysOtherwise) {
  for (const Op& op : ValidOps()) {
    const bool parts = op.Is<EmbeddingForward>() || op.Is<CachedAttention>() || op.Is<ZeroRanges>();
    const OpTraffic traffic = TrafficOf(op);
    const double read = BytesOf(op, Access::kRead), written = BytesOf(op, Access::kWrite);
    if (!parts) {
      EXPECT_EQ(traffic.bytes_read, read) << Text(shale::NameOf(op));
      EXPECT_EQ(traffic.bytes_written, written) << Text(shale::NameOf(op));
      continue;
    }
    EXPECT_LE(traffic.bytes_read, read) << Text(shale::NameOf(op));
    EXPECT_LE(traffic.bytes_written, written) << Text(shale::NameOf(op));
    EXPECT_LT(traffic.bytes_read + traffic.bytes_written, read + written) << Text(shale::NameOf(op));
  }
}

TEST(Traffic, CountsTheRowsAndRangesThatAreUsed) {
  const auto bf16 = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kBFloat16, shape); };
  const auto f32 = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kFloat32, shape); };
  const Tensor tokens_BS = Tensor::Contiguous(DType::kInt32, {2, 3});  // 24 bytes.
  EmbeddingForward embedding{
      .tokens_BS = tokens_BS, .weight_VC = bf16({100, 8}), .positions_PC = bf16({50, 8}), .out_TC = bf16({6, 8})};
  EXPECT_EQ(TrafficOf(embedding).bytes_read, 24 + (6 + 3) * 16);
  EXPECT_EQ(TrafficOf(embedding).bytes_written, 6 * 16);
  embedding.begins_B = Tensor::Contiguous(DType::kInt32, {2});
  EXPECT_EQ(TrafficOf(embedding).bytes_read, 24 + (6 + 6) * 16 + 8);

  EmbeddingBackward gradient{.tokens_BS = tokens_BS, .d_out_TC = bf16({6, 8}), .d_weight_VC = f32({100, 8})};
  EXPECT_EQ(TrafficOf(gradient).bytes_read, 24 + 6 * 16);
  EXPECT_EQ(TrafficOf(gradient).bytes_written, 100 * 32);
  gradient.accumulate = true;
  EXPECT_EQ(TrafficOf(gradient).bytes_read, 24 + 6 * 16 + 6 * 32);
  EXPECT_EQ(TrafficOf(gradient).bytes_written, 6 * 32);

  // Three new tokens of one sequence, stored for four, in a cache of 20 rows.
  CachedAttention cached{.q_BSHD = bf16({1, 3, 2, 8}),
                         .k_BSGD = bf16({1, 3, 1, 8}),
                         .v_BSGD = bf16({1, 3, 1, 8}),
                         .begins_B = Tensor::Contiguous(DType::kInt32, {1}),
                         .out_BSHD = bf16({1, 3, 2, 8}),
                         .keys_CGPD = bf16({4, 1, 20, 8}),
                         .values_CGPD = bf16({4, 1, 20, 8})};
  const double q = 3 * 2 * 16, k = 3 * 16;
  EXPECT_EQ(TrafficOf(cached).bytes_read, q + 2 * k + 4 + 2 * 20 * 16);
  EXPECT_EQ(TrafficOf(cached).bytes_written, q + 2 * 4 * k);
  cached.window = 5;  // The three queries see seven keys.
  EXPECT_EQ(TrafficOf(cached).bytes_read, q + 2 * k + 4 + 2 * 7 * 16);

  const ZeroRanges zero{
      .x_N = f32({100}),
      .ranges = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{1, 3}, {50, 60}})};
  EXPECT_EQ(TrafficOf(zero).bytes_read, 0);
  EXPECT_EQ(TrafficOf(zero).bytes_written, 12 * 4);

  MatMul matmul{.a = bf16({4, 8}),
                .b = bf16({8, 16}),
                .c_MN = bf16({4, 16}),
                .packed_b = Tensor::Contiguous(DType::kInt16, {200})};
  EXPECT_EQ(TrafficOf(matmul).bytes_read, 4 * 16 + 8 * 32);
  EXPECT_EQ(TrafficOf(matmul).bytes_written, 4 * 32 + 400);
  matmul.b_is_packed = true;
  EXPECT_EQ(TrafficOf(matmul).bytes_read, 4 * 16 + 400);
  EXPECT_EQ(TrafficOf(matmul).bytes_written, 4 * 32);
}

}  // namespace
}  // namespace shale::testing
