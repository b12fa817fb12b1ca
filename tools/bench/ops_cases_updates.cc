// Cases of the ops on the flat vectors of a unit.
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/counter_random.h"
#include "kernels/integers.h"
#include "kernels/ops.h"
#include "kernels/step_scalars.h"
#include "tools/bench/ops_case_maker.h"

namespace shale {
namespace {

// Adds the ops on the flat vectors of a unit, except updates. They do not depend on the dtype of activations, so only
// f32 has these cases.
void AddFlat(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const int64_t p = m.s.parameters;
  if (m.act == DType::kFloat32) {
    const Sum sum{.x_N = m.F32({p}), .total_1 = m.New(DType::kFloat64, {1})};
    cases.push_back(m.Finish(sum, "", ShapeText(sum.x_N)));
    const SumSquares squares{.x_N = m.F32({p}), .total_1 = m.New(DType::kFloat64, {1})};
    cases.push_back(m.Finish(squares, "", ShapeText(squares.x_N)));
    for (const bool accumulate : {false, true}) {
      const Accumulate op{.x_N = m.F32({p}), .total_N = m.F32({p}), .accumulate = accumulate};
      cases.push_back(m.Finish(op, accumulate ? "accumulate" : "", ShapeText(op.x_N)));
    }
    const SumSquares narrow{.x_N = m.New(DType::kBFloat16, {p}), .total_1 = m.New(DType::kFloat64, {1})};
    cases.push_back(m.Finish(narrow, "bf16", ShapeText(narrow.x_N)));
    const Accumulate rounds{.x_N = m.F32({p}),
                            .total_N = m.New(DType::kBFloat16, {p}),
                            .accumulate = true,
                            .update_count_1 = m.New(DType::kInt64, {1}),
                            .stream = GradientStream(0)};
    cases.push_back(m.Finish(rounds, "accumulate bf16", ShapeText(rounds.x_N)));
    constexpr int64_t kRanks = 8;
    const SumRows rows{.x_WN = m.New(DType::kBFloat16, {kRanks, p / kRanks}), .total_N = m.F32({p / kRanks})};
    cases.push_back(m.Finish(rows, "", ShapeText(rows.x_WN)));
    const Copy round{.from = m.F32({p}), .to = m.New(DType::kBFloat16, {p})};
    cases.push_back(m.Finish(round, "f32 to bf16", ShapeText(round.to)));
    const Copy widen{.from = m.New(DType::kBFloat16, {p}), .to = m.F32({p})};
    cases.push_back(m.Finish(widen, "bf16 to f32", ShapeText(widen.to)));
  }
}

// Adds the passes of Adafactor over a square matrix.
void AddAdafactor(OpCaseMaker& m, std::vector<OpCase>& cases) {
  using Stage = Adafactor::Stage;
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(m.s.parameters)));
  const int64_t p = side * side, f = 2 * side;
  const auto parameters = std::make_shared<const std::vector<FactoredParameter>>(
      std::vector<FactoredParameter>{{.rows = side, .columns = side, .row_begin = 0, .column_begin = side}});
  const auto add = [&](const char* name, const Adafactor& op) {
    cases.push_back(m.Finish(op, name, absl::StrCat("[", side, ", ", side, "]")));
  };
  add("sums", {.stage = Stage::kSums,
               .update_5 = m.F32({kUpdateSize}),
               .gradient_P = m.F32({p}),
               .sums = m.F32({f}),
               .parameters = parameters});
  add("moments", {.stage = Stage::kMoments,
                  .update_5 = m.F32({kUpdateSize}),
                  .number_1 = m.New(DType::kInt64, {1}),
                  .sums = m.F32({f}),
                  .moments = m.F32({f}),
                  .parameters = parameters});
  add("direction", {.stage = Stage::kDirection,
                    .update_5 = m.F32({kUpdateSize}),
                    .gradient_P = m.F32({p}),
                    .weight_P = m.F32({p}),
                    .moments = m.F32({f}),
                    .direction_P = m.F32({p}),
                    .totals_Q2 = m.New(DType::kFloat64, {1, 2}),
                    .parameters = parameters});
  add("scale", {.stage = Stage::kScale,
                .update_5 = m.F32({kUpdateSize}),
                .number_1 = m.New(DType::kInt64, {1}),
                .weight_P = m.F32({p}),
                .direction_P = m.F32({p}),
                .totals_Q2 = m.New(DType::kFloat64, {1, 2}),
                .step_5 = m.F32({kUpdateSize}),
                .parameters = parameters});
}

// Adds the ops of Muon, but for matmuls: on a square matrix, and on its product with its transpose.
void AddMuon(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(m.s.parameters)));
  const int64_t p = side * side;
  const std::string shape = absl::StrCat("[", side, ", ", side, "]");
  cases.push_back(m.Finish(MuonDirection{.update_5 = m.F32({kUpdateSize}),
                                         .gradient_P = m.F32({p}),
                                         .momentum_P = m.F32({p}),
                                         .direction_P = m.Act({p}),
                                         .step_5 = m.F32({kUpdateSize})},
                           "", shape));
  cases.push_back(m.Finish(
      DivideByNorm{.x_N = m.Act({p}), .squares_1 = m.New(DType::kFloat64, {1}), .out_N = m.Act({p})}, "", shape));
  cases.push_back(m.Finish(MatrixPolynomial{.x_MM = m.Act({side, side}),
                                            .y_MM = m.Act({side, side}),
                                            .out_MM = m.Act({side, side}),
                                            .a = MuonRule::kCoefficients[0],
                                            .b = MuonRule::kCoefficients[1],
                                            .c = MuonRule::kCoefficients[2]},
                           "", shape));
}

// Adds every update rule on the flat vectors of a unit, in bf16 with every form of masters, and with lean state.
void AddUpdates(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const int64_t p = m.s.parameters;
  const auto all = std::make_shared<std::vector<ElementRange>>(1, ElementRange{0, p});
  const auto make = [&](const UpdateRule& rule) {
    Update op{.update_5 = m.F32({kUpdateSize}),
              .gradient_P = m.F32({p}),
              .weight_P = m.Act({p}),
              .rule = rule,
              .decayed = all};
    const absl::Span<const UpdateState> states = StatesOf(rule);
    for (size_t i = 0; i < states.size(); ++i) {
      op.states[i] = m.New(states[i].dtype, {CeilDivide(p, states[i].block)});
    }
    return op;
  };
  std::vector<std::pair<UpdateRule, std::string>> rules;
  for (const UpdateRule& rule : DefaultRules()) rules.push_back({rule, ""});
  rules.push_back({SgdRule{.momentum = 0}, "without momentum"});
  for (const auto& [rule, variant] : rules) {
    Update op = make(rule);
    if (m.act == DType::kFloat32) {
      cases.push_back(m.Finish(op, variant, ShapeText(op.weight_P)));
      continue;
    }
    const std::string prefix = variant.empty() ? "" : variant + ", ";
    op.master_P = m.F32({p});
    cases.push_back(m.Finish(op, prefix + "f32 masters", ShapeText(op.weight_P)));
    op = make(rule);
    op.low_P = m.New(DType::kInt16, {p});
    cases.push_back(m.Finish(op, prefix + "split masters", ShapeText(op.weight_P)));
  }
  if (m.act == DType::kFloat32) return;
  for (const UpdateRule& rule :
       {UpdateRule(AdamWRule{.state_dtype = DType::kBFloat16}), UpdateRule(SgdRule{.state_dtype = DType::kBFloat16}),
        UpdateRule(LionRule{.state_dtype = DType::kBFloat16}), UpdateRule(AdamW8BitRule())}) {
    Update op = make(rule);
    op.number_1 = m.New(DType::kInt64, {1});
    cases.push_back(m.Finish(op, "lean", ShapeText(op.weight_P)));
  }
}

}  // namespace

void AddOpsOnFlatGroups(OpCaseMaker& m, std::vector<OpCase>& cases) {
  AddFlat(m, cases);
  AddUpdates(m, cases);
  if (m.act == DType::kFloat32) AddAdafactor(m, cases);
  if (m.act != DType::kFloat16) AddMuon(m, cases);
}

}  // namespace shale
