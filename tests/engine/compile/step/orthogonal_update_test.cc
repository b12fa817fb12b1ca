// Tests the instructions of Muon, run on the reference: against torch.optim.Muon, and with hostile gradients.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "engine/compile/step/update.h"
#include "engine/compile/step/writer.h"
#include "gtest/gtest.h"
#include "kernels/op.h"
#include "kernels/ops/update.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/step_scalars.h"
#include "tests/engine/compile/step/muon_goldens.h"

namespace shale {
namespace {

// The matrices of tests/parity/make_muon_goldens.py. Element i of matrix k is number 100 k + i in its formulas.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{5, 7}, {8, 3}, {1, 9}, {6, 1}, {4, 4}, {1, 1}};
float GradientOf(int64_t i, int64_t step) {
  return static_cast<float>(static_cast<double>((i * 37 + step * 101 + i * step * 13) % 199 - 99) * 0.01);
}
float FirstValueOf(int64_t i) { return static_cast<float>(static_cast<double>(i * 29 % 61 - 30) * 0.02); }

// The update of one flat group with these matrices on one rank, and its memory.
class MuonUpdate {
 public:
  MuonUpdate(const MuonRule& rule, DType dtype) : layout_(LayoutOfShapes()) {
    const int64_t n = layout_.padded_elements();
    const auto add = [&](const char* name, DType of, int64_t elements) {
      return writer_.AddTensor(name, BufferCategory::kData, Tensor::Contiguous(of, {elements}));
    };
    GroupState g{.placement = GroupPlacement(layout_, Placement::Of(Strategy::kFullShard, false, Mesh{}))};
    g.own_weight = add("weight", dtype, n);
    Update update{.update_5 = add("update", DType::kFloat32, kUpdateSize),
                  .gradient_P = add("gradient", DType::kFloat32, n),
                  .weight_P = g.own_weight,
                  .rule = rule.last_rule()};
    if (dtype != DType::kFloat32) update.master_P = add("master", DType::kFloat32, n);
    auto decayed = std::make_shared<std::vector<ElementRange>>();
    for (const ShardLayout::PlacedParameter& p : layout_.parameters()) decayed->push_back(p.range());
    update.decayed = decayed;
    update_ = update.update_5;
    gradient_ = update.gradient_P;
    momentum_ = add("momentum", DType::kFloat32, n);
    master_ = dtype == DType::kFloat32 ? update.weight_P : update.master_P;
    EmitOrthogonalDirection(rule, g, momentum_, update, writer_);
    writer_.Emit({.stream = StreamId::kCompute, .phase = Phase::kUpdate}, Op(std::move(update)));
    program_ = writer_.Finish();
    for (const Buffer& buffer : program_.buffers) memory_.emplace_back(buffer.size_bytes());
    Fill(master_, [](int64_t i) { return FirstValueOf(i); });
    Fill(momentum_, [](int64_t) { return 0; });
  }

  // Sets the elements of all matrices to a function of their numbers, and those between them to 0.
  void Fill(const Tensor& t, const std::function<float(int64_t)>& value) {
    float* const to = Bound(t).as<float>();
    std::fill_n(to, t.elements(), 0.0f);
    for (size_t k = 0; k < std::size(kShapes); ++k) {
      const ShardLayout::PlacedParameter& p = layout_.parameters()[k];
      for (int64_t i = 0; i < p.elements; ++i) to[p.offset_elements + i] = value(static_cast<int64_t>(100 * k) + i);
    }
  }

  void Step(double rate, const std::function<float(int64_t)>& gradient, bool skips = false) {
    const float update[kUpdateSize] = {static_cast<float>(rate), 1, 1, 1, skips ? 1.0f : 0.0f};
    std::copy_n(update, kUpdateSize, Bound(update_).as<float>());
    Fill(gradient_, gradient);
    for (const Instruction& instruction : program_.instructions) {
      Op op = std::get<Op>(instruction.action);
      EXPECT_TRUE(Validate(op).ok()) << Validate(op);
      VisitOperands(op, [&](absl::string_view, Tensor& t, Access) {
        if (t.present()) t = Bound(t);
      });
      EXPECT_TRUE(RunReference(op).ok());
    }
  }

  // Returns the elements of one matrix.
  std::vector<float> Matrix(const Tensor& t, size_t k) {
    const ShardLayout::PlacedParameter& p = layout_.parameters()[k];
    const float* const from = Bound(t).as<const float>() + p.offset_elements;
    return {from, from + p.elements};
  }
  std::vector<float> Weights(size_t k) { return Matrix(master_, k); }
  std::vector<float> Momentum(size_t k) { return Matrix(momentum_, k); }

 private:
  static ShardLayout LayoutOfShapes() {
    std::vector<ShardLayout::Entry> entries;
    for (const auto& [rows, columns] : kShapes) {
      entries.push_back({"matrix" + std::to_string(entries.size()), {rows, columns}});
    }
    return *ShardLayout::Create(entries, 1);
  }
  Tensor Bound(Tensor t) {
    t.data = memory_[t.where.symbol].data() + t.where.offset_bytes;
    return t;
  }

  const ShardLayout layout_;
  ProgramWriter writer_;
  StepProgram program_;
  Tensor update_, gradient_, momentum_, master_;
  std::vector<std::vector<std::byte>> memory_;
};

struct MuonGolden {
  MuonRule rule;
  absl::Span<const float> wide, narrow;
};

std::vector<MuonGolden> MuonGoldens() {
  using testing::kMatched, testing::kMatchedInBf16, testing::kOriginal, testing::kOriginalInBf16, testing::kSpectral,
      testing::kSpectralInBf16;
  return {{{}, kOriginal, kOriginalInBf16},
          {{.momentum = 0.8f, .weight_decay = 0.5f, .nesterov = false, .adjustment = RateAdjustment::kMatchRmsAdamW},
           kMatched,
           kMatchedInBf16},
          {{.epsilon = 30, .weight_decay = 0, .steps = 2, .adjustment = RateAdjustment::kSpectral},
           kSpectral,
           kSpectralInBf16}};
}

// Returns how far weights after 50 steps are from those of torch, as a part of how far torch has moved them: the
// largest of all matrices.
double DistanceFromTorch(const MuonRule& rule, DType dtype, absl::Span<const float> want) {
  MuonUpdate update(rule, dtype);
  for (int64_t step = 1; step <= 50; ++step) {
    update.Step(1e-2, [&](int64_t i) { return GradientOf(i, step); });
  }
  double worst = 0;
  size_t next = 0;
  for (size_t k = 0; k < std::size(kShapes); ++k) {
    const std::vector<float> weights = update.Weights(k);
    double moved = 0, distance = 0;
    for (size_t i = 0; i < weights.size(); ++i, ++next) {
      const double first = FirstValueOf(static_cast<int64_t>(100 * k + i));
      moved = std::max(moved, std::abs(want[next] - first));
      distance = std::max(distance, std::abs(static_cast<double>(weights[i]) - want[next]));
    }
    EXPECT_GT(moved, 1e-3) << k;
    worst = std::max(worst, distance / moved);
  }
  EXPECT_EQ(next, want.size());
  return worst;
}

// Both compute in fp32, and round in other orders.
TEST(OrthogonalUpdate, StepsAsTorchInFp32) {
  for (const MuonGolden& golden : MuonGoldens()) {
    EXPECT_LE(DistanceFromTorch(golden.rule, DType::kFloat32, golden.wide), 1e-5);
  }
}

// torch rounds the norm to bf16, which changes a matrix before the iterations by 2^-9, and adds a X in the matmul,
// where we round a I + b X X^T + ... to bf16. Each of the 5 iterations changes elements by about 2^-9 more, and small
// singular values grow by up to 3.4445 in each. Steps round independently, so 50 of them differ by less than one does.
TEST(OrthogonalUpdate, StepsNearlyAsTorchInBf16) {
  for (const MuonGolden& golden : MuonGoldens()) {
    EXPECT_LE(DistanceFromTorch(golden.rule, DType::kBFloat16, golden.narrow), 6 * 0x1p-8);
  }
}

// A gradient that is a power of two larger has the same direction to the bit: dividing by the norm is exact then. The
// singular values of the direction are about 1, but for the least of the matrix of 4 x 4, which are about 0.
TEST(OrthogonalUpdate, HugeAndTinyGradientsMoveWeightsAlike) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const float size : {0x1p-14f, 0x1p120f}) {
      MuonUpdate one({.weight_decay = 0}, dtype), other({.weight_decay = 0}, dtype);
      one.Step(1, [](int64_t i) { return GradientOf(i, 1); });
      other.Step(1, [&](int64_t i) { return size * GradientOf(i, 1); });
      for (size_t k = 0; k < std::size(kShapes); ++k) {
        const std::vector<float> weights = one.Weights(k);
        EXPECT_EQ(other.Weights(k), weights) << k << " " << size;
        double squares = 0;
        for (size_t i = 0; i < weights.size(); ++i) {
          const double moved = weights[i] - FirstValueOf(static_cast<int64_t>(100 * k + i));
          squares += moved * moved;
        }
        const auto [rows, columns] = kShapes[k];
        const double values = static_cast<double>(std::min(rows, columns)) * std::max(1.0, 1.0 * rows / columns);
        EXPECT_GT(std::sqrt(squares / values), 0.5) << k;
        EXPECT_LT(std::sqrt(squares / values), 1.25) << k;
      }
    }
  }
}

TEST(OrthogonalUpdate, ZeroGradientsOnlyDecayWeights) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    MuonUpdate update({.weight_decay = 0.5f}, dtype);
    update.Step(0.25, [](int64_t) { return 0; });
    for (size_t k = 0; k < std::size(kShapes); ++k) {
      for (size_t i = 0; i < update.Weights(k).size(); ++i) {
        EXPECT_EQ(update.Weights(k)[i], 0.875f * FirstValueOf(static_cast<int64_t>(100 * k + i)));
      }
    }
  }
}

TEST(OrthogonalUpdate, ASkippedStepChangesNothing) {
  MuonUpdate update({}, DType::kFloat32);
  update.Step(0.25, [](int64_t i) { return GradientOf(i, 1); });
  const std::vector<float> weights = update.Weights(0), momentum = update.Momentum(0);
  update.Step(
      0.25, [](int64_t i) { return i % 2 == 0 ? std::nanf("") : INFINITY; }, /*skips=*/true);
  EXPECT_EQ(update.Weights(0), weights);
  EXPECT_EQ(update.Momentum(0), momentum);
  update.Step(0.25, [](int64_t i) { return GradientOf(i, 2); });
  EXPECT_NE(update.Weights(0), weights);
  for (const float weight : update.Weights(0)) EXPECT_TRUE(std::isfinite(weight));
}

}  // namespace
}  // namespace shale
