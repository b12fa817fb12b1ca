#include "engine/compile/graph/data_needs.h"

#include <algorithm>

#include "kernels/ops/embedding.h"
#include "kernels/ops/loss.h"

namespace shale {
namespace {

// Lowers `limit`, which is 0 if there is none yet, to `other`.
void Lower(int64_t& limit, int64_t other) { limit = limit == 0 ? other : std::min(limit, other); }

}  // namespace

DataNeeds NeedsOf(const ModelGraph& graph) {
  DataNeeds needs{.last_target_only = graph.last_target_only,
                  .target_weights = graph.target_weights,
                  .position_ids = graph.position_ids};
  for (const UnitGraph& unit : graph.units) {
    for (const Value& value : unit.values) {
      if (value.IsData(StepItem::kFeatures)) needs.features = value.tensor.dim(1);
      if (value.IsData(StepItem::kTargetValues)) needs.target_values = value.tensor.dim(1);
    }
    for (const Node& node : unit.forward) {
      if (const auto* loss = node.op.As<CrossEntropy>()) Lower(needs.target_ids, loss->logits_TV.dim(1));
      const auto* embedding = node.op.As<EmbeddingForward>();
      if (embedding == nullptr) continue;
      const Value& tokens = unit.values[embedding->tokens_BS.where.symbol];
      if (tokens.IsData(StepItem::kInputs)) Lower(needs.input_ids, embedding->weight_VC.dim(0));
    }
  }
  return needs;
}

}  // namespace shale
