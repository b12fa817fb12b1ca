#include "engine/step/state.h"

#include "absl/strings/str_cat.h"
#include "engine/step/pattern.h"

namespace shale {
namespace {

bool Decays(const Parameter& parameter, const StepOptions& options) {
  if (parameter.shape.size() < 2) return false;
  for (const std::string& pattern : options.no_decay_patterns) {
    if (MatchesPattern(pattern, parameter.name)) return false;
  }
  return true;
}

SavedTensors SavedOf(const GroupState& g) {
  const auto mine = [&](const Tensor& t) {
    return t.present() && t.elements() > g.layout.shard_elements() ? OwnSlice(t, g.layout) : t;
  };
  SavedTensors saved{.m = mine(g.m), .v = mine(g.v)};
  if (g.low.present()) {
    saved.high = mine(g.own_weight);
    saved.low = mine(g.low);
  } else {
    saved.value = mine(g.master.present() ? g.master : g.own_weight);
  }
  return saved;
}

}  // namespace

Tensor OwnSlice(const Tensor& full, const ShardLayout& layout) {
  Tensor own = full.Slice(0, 0, layout.shard_elements());
  own.where.rank_stride_bytes = layout.shard_elements() * SizeOf(full.dtype);
  return own;
}

bool AccumulatesUnsharded(const StepOptions& options) {
  return options.ranks > 1 && (options.schedule == Schedule::kDeferred || options.strategy == Strategy::kNone ||
                               options.strategy == Strategy::kOptimizer);
}

bool GathersParameters(const StepOptions& options) { return options.ranks > 1 && options.strategy == Strategy::kFull; }

absl::StatusOr<JobState> DeclareState(const ModelGraph& model, const StepOptions& options, ProgramWriter& writer) {
  JobState state;
  const bool replicated = options.strategy == Strategy::kNone;
  const DType compute = model.compute_dtype;
  const bool split = options.master == MasterWeights::kSplit;
  for (const ParameterGroup& group : model.groups) {
    std::vector<ShardLayout::Entry> entries;
    for (ParameterId id : group.parameters) entries.push_back({model.parameters[id].name, model.parameters[id].shape});
    SHALE_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Create(entries, static_cast<int>(options.ranks)));
    const int64_t full = layout.padded_elements();
    const int64_t own = replicated ? full : layout.shard_elements();
    const auto add = [&](absl::string_view what, BufferCategory category, DType dtype, int64_t elements) {
      return writer.AddTensor(absl::StrCat(group.name, ".", what), category, Tensor::Contiguous(dtype, {elements}), 1,
                              /*persistent=*/true);
    };
    GroupState g{.layout = layout};
    if (GathersParameters(options)) {
      g.own_weight = add("weights", BufferCategory::kParameterShards, compute, own);
    } else {
      g.full_weight = add("weights", BufferCategory::kParameterShards, compute, full);
      g.own_weight = replicated ? g.full_weight : OwnSlice(g.full_weight, layout);
    }
    if (compute != DType::kFloat32) {
      if (split) {
        g.low = add("low_bits", BufferCategory::kMasterWeights, DType::kInt16, own);
      } else {
        g.master = add("masters", BufferCategory::kMasterWeights, DType::kFloat32, own);
      }
    }
    g.m = add("m", BufferCategory::kOptimizerState, DType::kFloat32, own);
    g.v = add("v", BufferCategory::kOptimizerState, DType::kFloat32, own);
    if (AccumulatesUnsharded(options)) {
      g.full_gradient = add("gradient", BufferCategory::kUnshardedGradients, DType::kFloat32, full);
      g.own_gradient = replicated ? g.full_gradient : OwnSlice(g.full_gradient, layout);
    } else {
      g.own_gradient = add("gradient", BufferCategory::kGradientShards, DType::kFloat32, own);
      if (options.ranks == 1) g.full_gradient = g.own_gradient;
    }
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      if (!Decays(model.parameters[group.parameters[i]], options)) continue;
      const ShardLayout::Placement& p = layout.parameters()[i];
      g.decayed.push_back({p.offset_elements, p.offset_elements + p.elements});
    }
    g.saved = SavedOf(g);
    if (options.snapshot) {
      const auto copy = [&](absl::string_view what, const Tensor& t) {
        return t.present() ? add(absl::StrCat("snapshot.", what), BufferCategory::kSnapshot, t.dtype, t.elements())
                           : Tensor();
      };
      g.snapshot = {.value = copy("value", g.saved.value),
                    .high = copy("high", g.saved.high),
                    .low = copy("low", g.saved.low),
                    .m = copy("m", g.saved.m),
                    .v = copy("v", g.saved.v)};
    }
    state.groups.push_back(std::move(g));
  }
  state.update_count = writer.AddTensor("update_count", BufferCategory::kOptimizerState,
                                        Tensor::Contiguous(DType::kInt64, {1}), 1, /*persistent=*/true);
  state.totals = writer.AddTensor("totals", BufferCategory::kData, Tensor::Contiguous(DType::kFloat64, {kTotalSize}), 1,
                                  /*persistent=*/true);
  return state;
}

}  // namespace shale
