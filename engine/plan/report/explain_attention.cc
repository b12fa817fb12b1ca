#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/plan/report/explain_sections.h"
#include "engine/strings/printing.h"
#include "kernels/ops/attention.h"

namespace shale {
namespace {

// The attention of a model's layers, for one micro-batch.
struct Attention {
  int64_t layers = 0;
  Tensor q_BSHD, lse_BHS;  // Of any layer: all layers have the same shape.
};

Attention AttentionOf(const ModelGraph& graph) {
  Attention attention;
  for (const UnitGraph& unit : graph.units) {
    for (const Node& node : unit.forward) {
      const auto* op = node.op.As<AttentionForward>();
      if (op == nullptr) continue;
      ++attention.layers;
      attention.q_BSHD = op->q_BSHD;
      attention.lse_BHS = op->lse_BHS;
    }
  }
  return attention;
}

std::string FormatDouble(double bytes) { return FormatBytes(static_cast<int64_t>(std::min(bytes, 0x1p62))); }

}  // namespace

SectionText ExplainAttention(const Explained& x) {
  const Attention attention = AttentionOf(x.plan.train.graph);
  if (attention.layers == 0) return "";
  const Tensor& q = attention.q_BSHD;
  const int64_t B = q.dim(0), S = q.dim(1), H = q.dim(2);
  const double scores = static_cast<double>(B) * static_cast<double>(H) * static_cast<double>(S) *
                        static_cast<double>(S) * static_cast<double>(SizeOf(q.dtype));
  return Section(
      "What attention does not store",
      absl::StrCat(
          "The scores of one layer, B x H x S x S = ", WithCommas(B), " x ", WithCommas(H), " x ", WithCommas(S), " x ",
          WithCommas(S), " in ", ToString(q.dtype), ", would take ", FormatDouble(scores), " for one micro-batch, and ",
          FormatDouble(scores * static_cast<double>(attention.layers)), " for all ", WithCommas(attention.layers),
          " layers. They are computed in tiles, in forward and once more in backward, and are never stored. Backward "
          "reads the log-sum-exp of each row of scores instead, ",
          FormatBytes(attention.lse_BHS.extent_bytes()), " a layer."));
}

}  // namespace shale
