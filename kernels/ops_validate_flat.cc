// Checks the operands of the ops on flat vectors and scalars. A flat vector may be empty, because a rank may own no
// elements of a group.
#include <algorithm>
#include <variant>

#include "kernels/counter_random.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"
#include "kernels/op_checker.h"
#include "kernels/ops/adafactor.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/muon.h"
#include "kernels/ops/quantized.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"

namespace shale::internal {
namespace {

Dim Flat(absl::string_view name) { return Dim{.name = name, .minimum = 0}; }

bool SameShape(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

void CheckAlike(OpChecker& c, absl::string_view name, const Tensor& t, absl::string_view model_name,
                const Tensor& model) {
  c.Require(t.present(), name, " is missing; wanted the shape of ", model_name);
  c.Require(SameShape(t, model), name, " is ", t.ToString(), "; wanted the shape of ", model_name, ", ",
            model.ToString());
  c.Require(t.contiguous(), name, " is strided; wanted contiguous");
}

// Requires the ranges to be sorted, disjoint and not negative.
void CheckRanges(OpChecker& c, absl::string_view name, const std::vector<ElementRange>& ranges) {
  int64_t last = 0;
  for (const ElementRange& r : ranges) {
    c.Require(r.begin >= last && r.end >= r.begin, name, " has [", r.begin, ", ", r.end,
              ") after a range that ends at ", last, "; wanted sorted ranges that do not overlap");
    last = r.end;
  }
}

void CheckTotal(OpChecker& c, const Tensor& total_1) {
  Dim one{"", 1};
  c.Typed("total", total_1, DType::kFloat64, {&one});
}

void RefuseHalves(OpChecker& c, absl::string_view name, const Tensor& t) {
  c.Require(t.dtype != DType::kFloat16, name, " is ", t.ToString(), "; wanted f32 or bf16");
}

// Requires that blocks of random bits do not begin inside the shard of an op that rounds stochastically.
void CheckRandomBlocks(OpChecker& c, int64_t shard_begin) {
  c.Require(shard_begin % kRandomBlock == 0, "shard_begin is ", shard_begin, "; wanted a multiple of ", kRandomBlock,
            ", the elements that a block of random bits rounds");
}

// Requires a shard of P elements of a flat group.
void CheckShard(OpChecker& c, int64_t shard_begin, int64_t shard_stride, int64_t P) {
  c.Require(shard_begin >= 0, "shard_begin is ", shard_begin, "; wanted 0 or more");
  c.Require(shard_stride == 0 || shard_stride == P, "shard_stride is ", shard_stride, "; wanted 0, or ", P,
            ", the elements of the shard");
}

// Requires the states that the rule declares, for P elements, and no others.
void CheckStates(OpChecker& c, const Update& op, int64_t P) {
  const absl::Span<const UpdateState> states = StatesOf(op.rule);
  for (size_t i = 0; i < op.states.size(); ++i) {
    if (i < states.size()) {
      Dim size = states[i].block == 1 ? Dim{"P", P} : Dim{"P/block", P < 0 ? -1 : CeilDivide(P, states[i].block)};
      c.Typed(states[i].name, op.states[i], states[i].dtype, {&size});
    } else {
      c.Require(!op.states[i].present(), "states[", i, "] is ", op.states[i].ToString(), "; wanted none, because ",
                NameOf(op.rule), " has ", states.size(), states.size() == 1 ? " state" : " states");
    }
  }
}

// The checker that an update rule's Check calls (kernels/update_rules.h).
class RuleChecker {
 public:
  explicit RuleChecker(OpChecker& c) : c_(c) {}
  void Require(bool condition, absl::string_view message) { c_.Require(condition, message); }
  void DecayRate(absl::string_view name, float rate) {
    c_.Require(rate >= 0 && rate < 1, name, " is ", rate, "; wanted 0 or more, and less than 1");
  }
  void NotNegative(absl::string_view name, float value) {
    c_.Require(value >= 0, name, " is ", value, "; wanted 0 or more");
  }
  void StateDType(DType dtype) {
    c_.Require(dtype == DType::kFloat32 || dtype == DType::kBFloat16, "state_dtype is ", ToString(dtype),
               "; wanted f32 or bf16");
  }

 private:
  OpChecker& c_;
};

}  // namespace

void Check(OpChecker& c, const Sum& op) {
  Dim N = Flat("N");
  c.Typed("x", op.x_N, DType::kFloat32, {&N});
  CheckTotal(c, op.total_1);
}

void Check(OpChecker& c, const SumSquares& op) {
  Dim N = Flat("N");
  c.Act("x", op.x_N, {&N});
  CheckTotal(c, op.total_1);
}

void Check(OpChecker& c, const Copy& op) {
  c.Require(op.from.present(), "from is missing");
  c.Require(op.from.contiguous(), "from is strided; wanted contiguous");
  CheckAlike(c, "to", op.to, "from", op.from);
  const bool wide = op.from.dtype == DType::kFloat32 || op.to.dtype == DType::kFloat32;
  const bool converts = wide && IsComputeDType(op.from.dtype) && IsComputeDType(op.to.dtype);
  c.Require(op.from.dtype == op.to.dtype || converts, "from is ", op.from.ToString(), " and to is ", op.to.ToString(),
            "; wanted one dtype, or f32 and bf16 or f16");
}

void Check(OpChecker& c, const Add& op) {
  c.Require(op.a.present(), "a is missing");
  c.Require(IsComputeDType(op.a.dtype), "a is ", op.a.ToString(), "; wanted f32, bf16 or f16");
  c.Require(op.a.contiguous(), "a is strided; wanted contiguous");
  for (const auto& [name, tensor] : {std::pair<absl::string_view, const Tensor*>{"b", &op.b}, {"out", &op.out}}) {
    CheckAlike(c, name, *tensor, "a", op.a);
    c.Require(tensor->dtype == op.a.dtype, name, " is ", tensor->ToString(), "; wanted the dtype of a, ",
              ToString(op.a.dtype));
  }
  c.MayBe("out", "a");
  c.MayBe("out", "b");
}

void Check(OpChecker& c, const Accumulate& op) {
  Dim N = Flat("N");
  c.Typed("x", op.x_N, DType::kFloat32, {&N});
  c.Act("total", op.total_N, {&N});
  c.Require(op.total_N.dtype != DType::kFloat16, "total is ", op.total_N.ToString(), "; wanted f32 or bf16");
  c.Require(op.update_count_1.present() == op.rounds(),
            op.rounds() ? "update_count is missing; wanted it for a bf16 total, which is rounded stochastically"
                        : "update_count is given for an f32 total; wanted a bf16 total, or no update_count");
  c.Require(op.rounds() || !op.micro_batch_1.present(),
            "micro_batch is given for an f32 total; wanted a bf16 total, or no micro_batch");
  if (!op.rounds()) return;
  Dim one{"", 1};
  c.Typed("update_count", op.update_count_1, DType::kInt64, {&one});
  if (op.micro_batch_1.present()) c.Typed("micro_batch", op.micro_batch_1, DType::kInt64, {&one});
  c.Require(op.stream >= kGradientStreams && op.stream < 2 * kGradientStreams, "stream is ", op.stream,
            "; wanted a GradientStream");
  CheckRandomBlocks(c, op.shard_begin);
  c.Require(op.part_begin >= 0 && op.part_begin % kRandomBlock == 0, "part_begin is ", op.part_begin,
            "; wanted a multiple of ", kRandomBlock);
  const int64_t end = op.part_begin + N.size;
  CheckShard(c, op.shard_begin, op.shard_stride, std::max(end, op.shard_stride));
}

void Check(OpChecker& c, const SumRows& op) {
  Dim W = {"W"}, N = Flat("N");
  c.Typed("x", op.x_WN, DType::kBFloat16, {&W, &N});
  c.Typed("total", op.total_N, DType::kFloat32, {&N});
}

void Check(OpChecker& c, const QuantizeShard& op) {
  const bool quantizes = op.stage == QuantizeShard::Stage::kQuantize;
  Dim P = Flat("P"), W{"W"}, Q{"Q"};
  c.Act("weight", op.weight_P, {&P});
  c.Require(op.parameters != nullptr, "parameters is null; wanted a list");
  if (!c.ok()) return;
  Q.size = std::ssize(*op.parameters);
  if (!quantizes) W.size = 1;
  c.Typed("maxima", op.maxima_WQ, DType::kFloat32, {&W, &Q}, Layout::kDenseRows);
  if (quantizes) {
    c.Typed("out", op.out_P, DType::kFloat8E4M3, {&P});
    c.Typed("scales", op.scales_Q, DType::kFloat32, {&Q});
  }
  CheckRanges(c, "parameters", *op.parameters);
  CheckShard(c, op.shard_begin, op.shard_stride, P.size);
}

void Check(OpChecker& c, const Nf4Dequantize& op) {
  Dim R = {"R"}, N = Flat("N");
  c.Act("out", op.out_RN, {&R, &N});
  c.Require(N.size % kNf4GroupWeights == 0, "out is ", op.out_RN.ToString(), "; wanted rows of a multiple of ",
            kNf4GroupWeights, " weights");
  Dim P = {"P", Nf4Row{N.size}.bytes()};
  c.Typed("stored", op.stored_RP, DType::kUInt8, {&R, &P});
}

void Check(OpChecker& c, const ZeroRanges& op) {
  Dim N = Flat("N");
  c.Act("x", op.x_N, {&N});
  c.Require(op.ranges != nullptr, "ranges is null; wanted a list");
  if (!c.ok()) return;
  CheckRanges(c, "ranges", *op.ranges);
  c.Require(op.ranges->empty() || op.ranges->back().end <= N.size, "ranges ends at ",
            op.ranges->empty() ? 0 : op.ranges->back().end, "; wanted at most N=", N.size);
}

namespace {

void CheckLossScale(OpChecker& c, const Tensor& loss_scale_3) {
  Dim three{"loss_scale", kLossScaleSize};
  if (loss_scale_3.present()) c.Typed("loss_scale", loss_scale_3, DType::kFloat64, {&three});
}

}  // namespace

void Check(OpChecker& c, const MeanFactor& op) {
  Dim one{"", 1};
  c.Typed("valid_tokens", op.valid_tokens_1, DType::kInt64, {&one});
  c.Typed("factor", op.factor_1, DType::kFloat32, {&one});
  if (op.weight_total_1.present()) c.Typed("weight_total", op.weight_total_1, DType::kFloat64, {&one});
  CheckLossScale(c, op.loss_scale_3);
}

void Check(OpChecker& c, const FlagNonFinite& op) {
  Dim three{"totals", kTotalSize};
  c.Typed("totals", op.totals_3, DType::kFloat64, {&three});
  CheckLossScale(c, op.loss_scale_3);
}

void Check(OpChecker& c, const CombineTotals& op) {
  Dim groups{"G"}, row{"totals", kTotalSize}, three{"totals", kTotalSize};
  c.Typed("groups", op.groups_G3, DType::kFloat64, {&groups, &row});
  c.Typed("totals", op.totals_3, DType::kFloat64, {&three});
}

void Check(OpChecker& c, const PrepareUpdate& op) {
  Dim one{"", 1}, hyper{"hyper", kHyperSize}, totals{"totals", kTotalSize}, update{"update", kUpdateSize};
  c.Typed("hyper", op.hyper_2, DType::kFloat32, {&hyper});
  c.Typed("valid_tokens", op.valid_tokens_1, DType::kInt64, {&one});
  c.Typed("totals", op.totals_3, DType::kFloat64, {&totals});
  c.Typed("update_count", op.update_count_1, DType::kInt64, {&one});
  c.Typed("update", op.update_5, DType::kFloat32, {&update});
  if (op.number_1.present()) c.Typed("number", op.number_1, DType::kInt64, {&one});
  if (op.previous_norm_1.present()) c.Typed("previous_norm", op.previous_norm_1, DType::kFloat64, {&one});
  if (op.weight_total_1.present()) c.Typed("weight_total", op.weight_total_1, DType::kFloat64, {&one});
  CheckLossScale(c, op.loss_scale_3);
  c.Require(op.growth_factor >= 1 && op.backoff_factor > 0 && op.backoff_factor < 1 && op.growth_interval > 0,
            "growth_factor is ", op.growth_factor, ", backoff_factor ", op.backoff_factor, " and growth_interval ",
            op.growth_interval, "; wanted at least 1, between 0 and 1, and above 0");
}

void Check(OpChecker& c, const RecordNorm& op) {
  Dim one{"", 1}, totals{"totals", kTotalSize};
  c.Typed("valid_tokens", op.valid_tokens_1, DType::kInt64, {&one});
  c.Typed("totals", op.totals_3, DType::kFloat64, {&totals});
  c.Typed("norm", op.norm_1, DType::kFloat64, {&one});
  if (op.weight_total_1.present()) c.Typed("weight_total", op.weight_total_1, DType::kFloat64, {&one});
}

void Check(OpChecker& c, const Adafactor& op) {
  using Stage = Adafactor::Stage;
  const bool sums = op.stage == Stage::kSums, moments = op.stage == Stage::kMoments,
             direction = op.stage == Stage::kDirection, scale = op.stage == Stage::kScale;
  Dim P = Flat("P"), F = Flat(moments ? "S" : "F"), one{"", 1}, update{"update", kUpdateSize}, pair{"totals", 2};
  c.Typed("update", op.update_5, DType::kFloat32, {&update});
  if (moments || scale) c.Typed("number", op.number_1, DType::kInt64, {&one});
  if (sums || direction) c.Typed("gradient", op.gradient_P, DType::kFloat32, {&P});
  if (sums || moments) c.Typed("sums", op.sums, DType::kFloat32, {&F});
  if (moments || direction) c.Typed("moments", op.moments, DType::kFloat32, {&F});
  if (direction || scale) {
    c.Typed("direction", op.direction_P, DType::kFloat32, {&P});
    c.Act("weight", op.weight_P, {&P});
    if (op.master_P.present()) c.Typed("master", op.master_P, DType::kFloat32, {&P});
    if (op.low_P.present()) c.Typed("low", op.low_P, DType::kInt16, {&P});
    c.Require(op.weight_P.dtype != DType::kFloat16 || op.master_P.present(),
              "weight is f16 and has no master; wanted an f32 master");
  }
  c.Require(op.parameters != nullptr, "parameters is null; wanted a list");
  if (!c.ok()) return;
  if (direction || scale) {
    Dim Q{"Q", std::ssize(*op.parameters)};
    c.Typed("totals", op.totals_Q2, DType::kFloat64, {&Q, &pair});
  }
  if (scale) c.Typed("step", op.step_5, DType::kFloat32, {&update});
  int64_t last_end = 0;
  for (const FactoredParameter& p : *op.parameters) {
    const int64_t end = p.column_begin + p.columns;
    c.Require(p.begin >= last_end, "a parameter begins at ", p.begin,
              ", before the end of that before it; wanted at "
              "least ",
              last_end);
    last_end = p.begin + p.elements();
    c.Require(p.rows > 0 && p.columns > 0 && p.begin >= 0 && p.column_begin >= 0 && p.row_begin >= -1,
              "a parameter has ", p.rows, " rows and ", p.columns, " columns; wanted at least one of each");
    c.Require(moments || scale || (end <= F.size && p.row_begin + p.rows <= F.size), "a parameter has factors up to ",
              end, "; wanted at most F=", F.size);
  }
  c.Require(op.beta1 == 0 || op.weight_decay == 0, "beta1 and weight_decay are both given; wanted one of them");
  CheckShard(c, op.shard_begin, op.shard_stride, moments ? F.size : P.size);
}

void Check(OpChecker& c, const MuonDirection& op) {
  Dim P = Flat("P"), update{"update", kUpdateSize}, one{"", 1};
  Float momentum, direction;
  c.Typed("update", op.update_5, DType::kFloat32, {&update});
  c.Typed("gradient", op.gradient_P, DType::kFloat32, {&P});
  c.Act("momentum", op.momentum_P, momentum, {&P});
  c.Act("direction", op.direction_P, direction, {&P});
  RefuseHalves(c, "momentum", op.momentum_P);
  RefuseHalves(c, "direction", op.direction_P);
  c.Typed("step", op.step_5, DType::kFloat32, {&update});
  c.Require(op.number_1.present() == op.rounds(),
            op.rounds() ? "a bf16 momentum needs number; it is missing"
                        : "number is given, and nothing is rounded stochastically; wanted "
                          "no number");
  if (op.number_1.present()) {
    c.Typed("number", op.number_1, DType::kInt64, {&one});
    CheckRandomBlocks(c, op.shard_begin);
  }
  RuleChecker(c).DecayRate("beta", op.beta);
  CheckShard(c, op.shard_begin, op.shard_stride, P.size);
}

void Check(OpChecker& c, const DivideByNorm& op) {
  Dim N = Flat("N"), one{"", 1};
  c.Act("x", op.x_N, {&N});
  c.Act("out", op.out_N, {&N});
  RefuseHalves(c, "x", op.x_N);
  c.Typed("squares", op.squares_1, DType::kFloat64, {&one});
  c.Require(op.epsilon > 0, "epsilon is ", op.epsilon, "; wanted more than 0");
  c.MayBe("out", "x");
}

void Check(OpChecker& c, const MatrixPolynomial& op) {
  Dim M{"M"};
  c.Act("x", op.x_MM, {&M, &M});
  c.Act("y", op.y_MM, {&M, &M});
  c.Act("out", op.out_MM, {&M, &M});
  RefuseHalves(c, "x", op.x_MM);
  c.MayBe("out", "x");
  c.MayBe("out", "y");
}

void Check(OpChecker& c, const Update& op) {
  Dim P = Flat("P"), update{"update", kUpdateSize}, one{"", 1};
  c.Typed("update", op.update_5, DType::kFloat32, {&update});
  c.Typed("gradient", op.gradient_P, DType::kFloat32, {&P});
  c.Act("weight", op.weight_P, {&P});
  const bool wide = op.weight_P.dtype == DType::kFloat32;
  c.Require(!(op.master_P.present() && op.low_P.present()), "master and low are both given; wanted one of them");
  c.Require(!(wide && op.low_P.present()), "low is given for an f32 weight; wanted a bf16 weight, or no low");
  c.Require(op.weight_P.dtype != DType::kFloat16 || op.master_P.present(),
            "weight is f16 and has no master; wanted an f32 master");
  c.Require(op.number_1.present() == op.rounds_stochastically(),
            op.number_1.present() ? "number is given, and nothing is rounded stochastically; wanted no number"
                                  : "bf16 states, or a bf16 weight without master and low, need number; it is missing");
  if (op.number_1.present()) {
    c.Typed("number", op.number_1, DType::kInt64, {&one});
    CheckRandomBlocks(c, op.shard_begin);
  }
  if (op.master_P.present()) c.Typed("master", op.master_P, DType::kFloat32, {&P});
  if (op.low_P.present()) c.Typed("low", op.low_P, DType::kInt16, {&P});
  CheckStates(c, op, P.size);
  RuleChecker checker(c);
  std::visit([&](const auto& rule) { rule.Check(checker); }, op.rule);
  if (op.decayed != nullptr) CheckRanges(c, "decayed", *op.decayed);
  const int64_t block = BlockOf(op.rule);
  for (const auto& [name, value] :
       {std::pair<absl::string_view, int64_t>{"shard_begin", op.shard_begin}, {"shard_stride", op.shard_stride}}) {
    c.Require(value % block == 0, name, " is ", value, "; wanted a multiple of ", block,
              ", the elements of a block of state");
  }
  CheckShard(c, op.shard_begin, op.shard_stride, P.size);
}

}  // namespace shale::internal
