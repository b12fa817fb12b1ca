#include "engine/plan/planner/accumulations.h"

#include <algorithm>
#include <iterator>

#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/draft.h"

namespace shale {
namespace {

// Returns whether several units write the gradient of one flat group, as with a tied embedding.
bool HasSharedGradients(const ModelGraph& graph) {
  std::vector<int> unit_of(graph.groups.size(), -1);
  for (int u = 0; u < std::ssize(graph.units); ++u) {
    for (const Value& value : graph.units[u].values) {
      if (value.role != ValueRole::kParameterGradient) continue;
      int& unit = unit_of[graph.parameters[value.parameter].group];
      if (unit >= 0 && unit != u) return true;
      unit = u;
    }
  }
  return false;
}

}  // namespace

std::vector<Accumulation> AccumulationsFor(DType gradient_shards) {
  if (gradient_shards != DType::kFloat32) return {Accumulation::kSharded, Accumulation::kLayered};
  return {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered};
}

AccumulationOrder OrderOf(const StepOptions& options, const ModelGraph& graph) {
  using enum Accumulation;
  const bool sums_full = options.mesh.shard == 1 || options.strategy < Strategy::kZero2;
  const bool in_backward = options.update == UpdateTime::kInBackward;
  std::vector<Accumulation> all;
  if (sums_full && (options.micro_batches == 1 || !in_backward)) {
    all = {kSharded, kNoSync, kLayered};
  } else if (options.micro_batches == 1) {
    all =
        HasSharedGradients(graph) ? std::vector{kNoSync, kSharded, kLayered} : std::vector{kSharded, kNoSync, kLayered};
  } else if (options.micro_batches >= 4 && !sums_full) {
    all = {kLayered, kNoSync, kSharded};
  }
  AccumulationOrder order{.is_near = sums_full && options.micro_batches > 1};
  const std::vector<Accumulation> allowed = AccumulationsFor(options.gradient_shards);
  std::copy_if(all.begin(), all.end(), std::back_inserter(order.all), [&](Accumulation accumulation) {
    return std::find(allowed.begin(), allowed.end(), accumulation) != allowed.end() &&
           CheckCombination(options.strategy, accumulation).ok();
  });
  return order;
}

ToCompile InOrder(const StepOptions& options, const ModelGraph& graph, const Budget& budget) {
  ToCompile plan{.order = OrderOf(options, graph).all};
  if (plan.order.empty()) return plan;
  const double least = LeastLayeredBytes(graph, options);
  plan.layered_misses = std::max(0.0, least - static_cast<double>(budget.bytes));
  if (plan.layered_misses > 0) {
    std::stable_partition(plan.order.begin(), plan.order.end(), [](auto a) { return a != Accumulation::kLayered; });
  }
  return plan;
}

}  // namespace shale
