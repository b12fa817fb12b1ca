#include "engine/run/train/step_flops.h"

#include <cstddef>

#include "engine/compile/graph/graph.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/time/prediction.h"
#include "kernels/check.h"

namespace shale {

StepFlops::StepFlops(const Job& job, const ModelGraph& graph, double float8_speed)
    : job_(job),
      graph_(graph),
      // A model with one target for a sequence has FLOPs for each target, and not for each token.
      has_documents_(graph.position_ids && !graph.last_target_only),
      per_token_(FlopsAtPeak(ModelFlopsPerToken(job, graph), Float8FlopsPerToken(graph), float8_speed)) {
  if (!has_documents_) return;
  const int64_t length = graph.sequence_length;
  per_token_ -= DocumentAttentionFlops(job, graph, length) / static_cast<double>(length);
}

double StepFlops::OfDocuments(absl::Span<const int32_t> position_ids) {
  SHALE_CHECK(has_documents_);
  double flops = 0;
  for (size_t end = 1, begin = 0; end <= position_ids.size(); ++end) {
    if (end < position_ids.size() && position_ids[end] != 0) continue;
    flops += OfDocument(static_cast<int64_t>(end - begin));
    begin = end;
  }
  return flops;
}

double StepFlops::OfDocument(int64_t length) {
  const auto [found, added] = of_length_.try_emplace(length);
  if (added) found->second = DocumentAttentionFlops(job_, graph_, length);
  return found->second;
}

}  // namespace shale
