// Checks the operands of the embedding, rotary embedding, attention, activation and loss ops.
#include <cmath>

#include "kernels/op_checker.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/rope.h"

namespace shale::internal {
namespace {

// Checks what says where tokens are, in an op that takes position ids or begins.
template <class OpType>
void CheckPositions(OpChecker& c, const OpType& op, Dim& B, Dim& S) {
  if (op.position_ids_BS.present()) c.Typed("position_ids", op.position_ids_BS, DType::kInt32, {&B, &S});
  if (op.begins_B.present()) c.Typed("begins", op.begins_B, DType::kInt32, {&B});
  c.Require(!op.position_ids_BS.present() || !op.begins_B.present(),
            "position_ids and begins are both given; wanted one or the other");
}

}  // namespace

void CheckAngles(OpChecker& c, int64_t head_width, double theta, const RopeScaling& scaling) {
  c.Require(head_width % 2 == 0, "heads have the width ", head_width, "; wanted an even one");
  c.Require(theta > 0, "theta is ", theta, "; wanted more than 0");
  c.Require(scaling.factor > 0, "scaling.factor is ", scaling.factor, "; wanted more than 0");
}

void Check(OpChecker& c, const EmbeddingForward& op) {
  Dim B{"B"}, S{"S"}, V{"V"}, C{"C"}, P{"P"};
  c.Typed("tokens", op.tokens_BS, DType::kInt32, {&B, &S});
  c.Act("weight", op.weight_VC, {&V, &C});
  if (op.positions_PC.present()) {
    c.Act("positions", op.positions_PC, {&P, &C});
    c.Require(P.size >= S.size, "positions has ", P.size, " rows; wanted at least S=", S.size);
  }
  CheckPositions(c, op, B, S);
  Dim T{"T", B.size * S.size};
  c.Act("out", op.out_TC, {&T, &C});
}

void Check(OpChecker& c, const EmbeddingBackward& op) {
  Dim B{"B"}, S{"S"}, V{"V"}, C{"C"}, P{"P"};
  c.Typed("tokens", op.tokens_BS, DType::kInt32, {&B, &S});
  Dim T{"T", B.size * S.size};
  c.Act("d_out", op.d_out_TC, {&T, &C});
  c.Typed("d_weight", op.d_weight_VC, DType::kFloat32, {&V, &C});
  if (op.d_positions_PC.present()) {
    c.Typed("d_positions", op.d_positions_PC, DType::kFloat32, {&P, &C});
    c.Require(P.size >= S.size, "d_positions has ", P.size, " rows; wanted at least S=", S.size);
  }
}

void Check(OpChecker& c, const Rope& op) {
  Dim B{"B"}, S{"S"}, H{"H"}, D{"D"};
  c.Act("x", op.x_BSHD, {&B, &S, &H, &D}, Layout::kDenseRows);
  CheckPositions(c, op, B, S);
  CheckAngles(c, D.size, op.theta, op.scaling);
}

namespace {

void CheckCap(OpChecker& c, float cap) {
  c.Require(cap >= 0 && std::isfinite(cap), "cap is ", cap, "; wanted 0 (none) or a number above 0");
}

struct AttentionDims {
  Dim B{"B"}, S{"S"}, H{"H"}, G{"G"}, D{"D"};
};

// Checks queries, keys, values and the result.
template <class OpType>
void CheckHeads(OpChecker& c, const OpType& op, AttentionDims& d) {
  c.Act("q", op.q_BSHD, {&d.B, &d.S, &d.H, &d.D}, Layout::kDenseRows);
  c.Act("k", op.k_BSGD, {&d.B, &d.S, &d.G, &d.D}, Layout::kDenseRows);
  c.Act("v", op.v_BSGD, {&d.B, &d.S, &d.G, &d.D}, Layout::kDenseRows);
  if (!c.ok()) return;
  c.Require(d.H.size % d.G.size == 0, "q has ", d.H.size, " heads and k has ", d.G.size,
            "; wanted a multiple of the heads of k");
  c.Require(op.scale > 0, "scale is ", op.scale, "; wanted a number above 0");
  c.Require(op.window >= 0, "window is ", op.window, "; wanted 0 (none) or more");
  CheckCap(c, op.cap);
  c.Act("out", op.out_BSHD, {&d.B, &d.S, &d.H, &d.D}, Layout::kDenseRows);
}

template <class OpType>
void CheckAttentionInputs(OpChecker& c, const OpType& op, AttentionDims& d) {
  CheckHeads(c, op, d);
  if (!c.ok()) return;
  c.Require(op.causal || op.window == 0, "window is ", op.window, " in attention that is not causal; wanted 0 (none), ",
            "because a query that sees later keys sees all of them");
  if (op.position_ids_BS.present()) c.Typed("position_ids", op.position_ids_BS, DType::kInt32, {&d.B, &d.S});
  c.Require(op.causal || !op.position_ids_BS.present(),
            "position_ids is given in attention that is not causal; wanted none");
  c.Typed("lse", op.lse_BHS, DType::kFloat32, {&d.B, &d.H, &d.S});
}

}  // namespace

void Check(OpChecker& c, const AttentionForward& op) {
  AttentionDims d;
  CheckAttentionInputs(c, op, d);
}

void Check(OpChecker& c, const AttentionBackward& op) {
  AttentionDims d;
  CheckAttentionInputs(c, op, d);
  c.Act("d_out", op.d_out_BSHD, {&d.B, &d.S, &d.H, &d.D}, Layout::kDenseRows);
  c.Act("d_q", op.d_q_BSHD, {&d.B, &d.S, &d.H, &d.D}, Layout::kDenseRows);
  c.Act("d_k", op.d_k_BSGD, {&d.B, &d.S, &d.G, &d.D}, Layout::kDenseRows);
  c.Act("d_v", op.d_v_BSGD, {&d.B, &d.S, &d.G, &d.D}, Layout::kDenseRows);
}

void Check(OpChecker& c, const CachedAttention& op) {
  AttentionDims d;
  CheckHeads(c, op, d);
  Dim C{"C"}, P{"P"};
  c.Typed("begins", op.begins_B, DType::kInt32, {&d.B});
  c.Act("keys", op.keys_CGPD, {&C, &d.G, &P, &d.D});
  c.Act("values", op.values_CGPD, {&C, &d.G, &P, &d.D});
  c.Require(d.B.size == C.size || d.B.size == 1, "q has ", d.B.size, " sequences and the cache has ", C.size,
            "; wanted as many, or one");
  c.Require(d.S.size <= P.size, "the cache has ", P.size, " positions; wanted at least S=", d.S.size);
}

void Check(OpChecker& c, const SwiGluForward& op) {
  Dim T{"T"}, F{"F"};
  c.Act("y", op.y_TF, {&T, &F});
  Dim F2{"2F", 2 * F.size};
  c.Act("gate_up", op.gate_up_T2F, {&T, &F2});
}

void Check(OpChecker& c, const SwiGluBackward& op) {
  Dim T{"T"}, F{"F"};
  c.Act("d_y", op.d_y_TF, {&T, &F});
  Dim F2{"2F", 2 * F.size};
  c.Act("gate_up", op.gate_up_T2F, {&T, &F2});
  c.Act("d_gate_up", op.d_gate_up_T2F, {&T, &F2});
  c.MayBe("d_gate_up", "gate_up");
  if (op.y_TF.present()) c.Act("y", op.y_TF, {&T, &F});
  c.MayBe("y", "d_y");
}

void Check(OpChecker& c, const GeluForward& op) {
  Dim T{"T"}, F{"F"};
  c.Act("x", op.x_TF, {&T, &F});
  c.Act("y", op.y_TF, {&T, &F});
}

void Check(OpChecker& c, const GeluBackward& op) {
  Dim T{"T"}, F{"F"};
  c.Act("x", op.x_TF, {&T, &F});
  c.Act("d_y", op.d_y_TF, {&T, &F});
  c.Act("d_x", op.d_x_TF, {&T, &F});
  c.MayBe("d_x", "d_y");
  if (op.y_TF.present()) c.Act("y", op.y_TF, {&T, &F});
  c.MayBe("y", "x");
}

void Check(OpChecker& c, const CrossEntropy& op) {
  Dim T{"T"}, V{"V"}, one{"", 1};
  c.Act("logits", op.logits_TV, {&T, &V});
  c.Typed("targets", op.targets_T, DType::kInt32, {&T}, Layout::kStrided);
  if (op.gradient || op.scale_1.present()) c.Typed("scale", op.scale_1, DType::kFloat32, {&one});
  if (op.weights_T.present()) c.Typed("weights", op.weights_T, DType::kFloat32, {&T}, Layout::kStrided);
  c.Typed("loss", op.loss_T, DType::kFloat32, {&T});
  CheckCap(c, op.cap);
}

void Check(OpChecker& c, const SquaredError& op) {
  Dim T{"T"}, D{"D"}, one{"", 1};
  c.Act("prediction", op.prediction_TD, {&T, &D});
  c.Typed("targets", op.targets_TD, DType::kFloat32, {&T, &D}, Layout::kDenseRows);
  const bool gradient = op.d_prediction_TD.present();
  if (gradient || op.scale_1.present()) c.Typed("scale", op.scale_1, DType::kFloat32, {&one});
  if (op.weights_T.present()) c.Typed("weights", op.weights_T, DType::kFloat32, {&T}, Layout::kStrided);
  c.Typed("loss", op.loss_T, DType::kFloat32, {&T});
  if (gradient) c.Act("d_prediction", op.d_prediction_TD, {&T, &D});
  c.MayBe("d_prediction", "prediction");
}

}  // namespace shale::internal
