#include "engine/step/activations.h"

#include "engine/text/pattern.h"

namespace shale {
namespace {

bool PresetRecomputes(CheckpointingPreset preset, const Value& value) {
  switch (preset) {
    case CheckpointingPreset::kNone: return false;
    case CheckpointingPreset::kCheap: return value.cheap;
    case CheckpointingPreset::kAttention: return value.sublayer == Sublayer::kAttention && !value.sublayer_input;
    case CheckpointingPreset::kFeedForward: return value.sublayer == Sublayer::kFeedForward && !value.sublayer_input;
    case CheckpointingPreset::kSublayers: return !value.sublayer_input;
    case CheckpointingPreset::kBlock: return true;
  }
  return false;
}

bool MayKeep(const UnitGraph& unit, const Value& value, bool last_unit, const ActivationOptions& options,
             int64_t layers) {
  if (last_unit) return true;
  if (MatchesAny(options.patterns, value.name)) return false;
  return !options.Chosen(layers).Includes(unit.layer) || !PresetRecomputes(options.preset, value);
}

}  // namespace

ValueId SumOf(const Node& node) {
  ValueId sum = -1;
  if (!node.from_sum) return sum;
  VisitOperands(node.op, [&](absl::string_view name, const Tensor& t, Access) {
    if (name == "sum") sum = t.where.symbol;
  });
  return sum;
}

std::vector<bool> DecideKept(const UnitGraph& unit, bool last_unit, const ActivationOptions& options, int64_t layers) {
  std::vector<bool> may_keep(unit.values.size());
  for (size_t id = 0; id < may_keep.size(); ++id) {
    may_keep[id] = MayKeep(unit, unit.values[id], last_unit, options, layers);
  }
  // If a value has several producers, the later ones write other parts of it or update it in place. Rerunning one of
  // them for another of its outputs could undo such updates. So if an output of any producer may not be kept, the value
  // is not kept either, and all its producers run again.
  for (size_t id = 0; id < may_keep.size(); ++id) {
    if (unit.values[id].producers.size() < 2) continue;
    for (int node : unit.values[id].producers) {
      VisitOperands(unit.forward[node].op, [&](absl::string_view, const Tensor& t, Access access) {
        if (t.present() && access != Access::kRead && !may_keep[t.where.symbol]) may_keep[id] = false;
      });
    }
  }
  std::vector<bool> kept(unit.values.size(), false), seen(unit.values.size(), false);
  std::vector<ValueId> wanted;
  const auto want_reads = [&](const Op& op) {
    VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
      if (t.present() && access != Access::kWrite) wanted.push_back(t.where.symbol);
    });
  };
  for (const Node& node : unit.backward) want_reads(node.op);
  while (!wanted.empty()) {
    const ValueId id = wanted.back();
    wanted.pop_back();
    const Value& value = unit.values[id];
    if (seen[id] || value.role != ValueRole::kActivation) continue;
    seen[id] = true;
    if (may_keep[id]) {
      kept[id] = true;
      continue;
    }
    for (int node : value.producers) {
      const Node& producer = unit.forward[node];
      const ValueId sum = SumOf(producer);
      want_reads(sum >= 0 && may_keep[sum] ? *producer.from_sum : producer.op);
    }
  }
  return kept;
}

}  // namespace shale
