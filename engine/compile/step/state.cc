#include "engine/compile/step/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/storage.h"
#include "engine/compile/step/writer.h"
#include "engine/strings/pattern.h"
#include "kernels/nf4.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

bool Decays(const Parameter& parameter, const StepOptions& options) {
  return parameter.shape.size() >= 2 && !MatchesAny(options.no_decay_patterns, parameter.name);
}

// Returns the parts of a row.
SavedTensors PartsOfNf4(const Tensor& row, int64_t weights) {
  const Nf4Row layout{weights};
  const auto part = [&](DType dtype, int64_t begin, int64_t elements) {
    Tensor t = Tensor::Contiguous(dtype, {elements});
    t.where = row.where;
    t.where.offset_bytes += begin;
    return t;
  };
  return {.nf4_codes = part(DType::kUInt8, layout.codes_begin(), weights / 2),
          .nf4_absmax = part(DType::kUInt8, layout.absmax_begin(), weights / kNf4BlockWeights),
          .nf4_scales = part(DType::kFloat32, layout.scales_begin(), layout.groups()),
          .nf4_means = part(DType::kFloat32, layout.means_begin(), layout.groups())};
}

SavedTensors SavedOf(const GroupState& g, absl::Span<const UpdateState> states) {
  // If every rank holds the full state, each rank saves only its shard.
  const bool split = g.placement.placement().state == Part::kFull && g.placement.placement().mesh.shard > 1;
  if (RowOf(g.storage).quantized) {
    return PartsOfNf4(split ? g.placement.EqualShardOf(g.own_weight) : g.own_weight, g.layout().shard_elements());
  }
  const auto mine = [&](const Tensor& t) { return t.present() && split ? g.placement.ShardOf(t) : t; };
  SavedTensors saved;
  for (size_t i = 0; i < g.states.size(); ++i) {
    const Tensor& t = g.states[i];
    saved.states.push_back(t.present() && split ? g.PlacementOf(states[i]).ShardOf(t, states[i].block) : t);
  }
  if (g.master.present() || g.own_weight.dtype == DType::kFloat32) {
    saved.value = mine(g.master.present() ? g.master : g.own_weight);
  } else {
    saved.high = mine(g.own_weight);
    saved.low = mine(g.low);
  }
  return saved;
}

// Adds the buffers in which gradients accumulate until the update. They are persistent only with keep_gradients.
void DeclareGradients(const ModelGraph& model, const StepOptions& options, JobState& state, ProgramWriter& writer) {
  state.keeps_gradients = options.keep_gradients;
  for (size_t i = 0; i < state.groups.size(); ++i) {
    GroupState& g = state.groups[i];
    if (g.frozen) continue;
    const Placement& placement = g.placement.placement();
    const auto add = [&](BufferCategory category, DType dtype, Part part) {
      return writer.AddTensor(absl::StrCat(model.groups[i].name, ".gradient"), category,
                              Tensor::Contiguous(dtype, {g.placement.elements(part)}), 1,
                              /*persistent=*/options.keep_gradients);
    };
    if (placement.reduces_full_gradients()) {
      g.full_gradient = add(BufferCategory::kUnshardedGradients, DType::kFloat32, Part::kFull);
      g.own_gradient = g.placement.OwnedOf(g.full_gradient);
    } else {
      g.own_gradient = add(BufferCategory::kGradientShards, options.gradient_shards, placement.state);
      // Backward accumulates in fp32, so it cannot write to a gradient in bf16.
      const bool narrow = options.gradient_shards != DType::kFloat32;
      if (!placement.reduces() && !narrow) g.full_gradient = g.own_gradient;
    }
  }
}

// Divides the parameters of a group among the ranks.
absl::StatusOr<GroupState> PlaceGroup(const ModelGraph& model, const ParameterGroup& group,
                                      const StepOptions& options) {
  std::vector<ShardLayout::Entry> entries;
  for (ParameterId id : group.parameters) entries.push_back({model.parameters[id].name, model.parameters[id].shape});
  const int64_t block = std::max(RowOf(group.storage).block, BlockOf(options.OptimizerOf(group).rule));
  SHALE_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Create(entries, static_cast<int>(options.mesh.shard), block));
  return GroupState{.placement = GroupPlacement(std::move(layout), options.placement()),
                    .frozen = group.frozen,
                    .optimizer_group = group.optimizer_group,
                    .block_matrices = group.block_matrices,
                    .storage = group.storage,
                    .float8 = group.float8};
}

// Returns JobState::states: those of rows and columns last, and otherwise in the order of the optimizers.
std::vector<UpdateState> StatesOfGroups(const ModelGraph& model, const StepOptions& options) {
  std::vector<UpdateState> states;
  for (int optimizer_group = -1; optimizer_group < std::ssize(options.optimizer_groups); ++optimizer_group) {
    for (const bool block_matrices : {true, false}) {
      const bool used = std::any_of(model.groups.begin(), model.groups.end(), [&](const ParameterGroup& group) {
        return !group.frozen && group.optimizer_group == optimizer_group && group.block_matrices == block_matrices;
      });
      if (!used) continue;
      for (const UpdateState& state : options.OptimizerOf(optimizer_group).Of(block_matrices).states()) {
        if (std::find(states.begin(), states.end(), state) == states.end()) states.push_back(state);
      }
    }
  }
  std::stable_partition(states.begin(), states.end(),
                        [](const UpdateState& state) { return state.extent == StateExtent::kElements; });
  return states;
}

bool HasFactors(const Optimizer& optimizer) {
  const std::vector<UpdateState> states = optimizer.states();
  return std::any_of(states.begin(), states.end(),
                     [](const UpdateState& state) { return state.extent == StateExtent::kRowsAndColumns; });
}

// Lays out the rows and the columns of a group's parameters.
absl::Status PlaceFactors(const ModelGraph& model, const ParameterGroup& group, const StepOptions& options,
                          GroupState& g) {
  std::vector<ShardLayout::Entry> entries;
  std::vector<FactoredParameter> factored;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const Parameter& parameter = model.parameters[group.parameters[i]];
    if (parameter.shape.size() > 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          EntryOf(options.OptimizerOf(group).kind).name, " updates vectors and matrices, and ", parameter.name, " has ",
          parameter.shape.size(), " dimensions; give it another rule in optimizer.groups"));
    }
    const bool matrix = parameter.shape.size() == 2;
    const int64_t columns = matrix ? parameter.shape.back() : parameter.elements();
    factored.push_back({.begin = g.layout().parameters()[i].offset_elements,
                        .rows = parameter.elements() / columns,
                        .columns = columns,
                        .decays = Decays(parameter, options)});
    if (matrix) entries.push_back({absl::StrCat(parameter.name, ".rows"), {factored.back().rows}});
    entries.push_back({absl::StrCat(parameter.name, ".columns"), {columns}});
  }
  SHALE_ASSIGN_OR_RETURN(ShardLayout layout, ShardLayout::Create(entries, static_cast<int>(options.mesh.shard)));
  auto entry = layout.parameters().begin();
  for (size_t i = 0; i < factored.size(); ++i) {
    const bool matrix = model.parameters[group.parameters[i]].shape.size() == 2;
    factored[i].row_begin = matrix ? entry++->offset_elements : -1;
    factored[i].column_begin = entry++->offset_elements;
  }
  g.factor_placement.emplace(std::move(layout), options.placement());
  g.factored = std::make_shared<const std::vector<FactoredParameter>>(std::move(factored));
  return absl::OkStatus();
}

// Adds the persistent buffers of one group. Borrows its arguments.
class GroupDeclarer {
 public:
  GroupDeclarer(const ModelGraph& model, const ParameterGroup& group, const StepOptions& options, ProgramWriter& writer)
      : model_(model), group_(group), options_(options), writer_(writer), offload_(options.state_on_host()) {}

  // The weights that the ranks compute with, or their shards.
  void Weights(GroupState& g) const {
    const Placement& placement = g.placement.placement();
    const StorageRow& storage = RowOf(group_.storage);
    const DType dtype = storage.dtype(group_.dtype);
    const BufferCategory weights = group_.frozen ? BufferCategory::kFrozenParameters : BufferCategory::kParameterShards;
    if (placement.gathers_for_use() || offload_.parameters) {
      g.own_weight = Add("weights", weights, dtype, storage.elements(Own(g)), offload_.parameters);
    } else {
      const int64_t shards = g.layout().shards();
      g.full_weight = Add("weights", weights, dtype, storage.elements(g.layout().shard_elements()) * shards);
      g.own_weight = placement.state == Part::kFull ? g.full_weight : g.placement.EqualShardOf(g.full_weight);
    }
  }

  // What the update keeps of a group that trains: weights on the host, masters or low bits, moments.
  void MastersAndStates(const JobState& state, GroupState& g) const {
    if (options_.updates_on_host()) {
      g.host_weight = offload_.parameters
                          ? g.own_weight
                          : Add("weights.on_host", BufferCategory::kParameterShards, group_.dtype, Own(g),
                                /*on_host=*/true);
    }
    if (group_.dtype != DType::kFloat32) {
      switch (options_.master) {
        case MasterWeights::kFloat32:
          g.master = Add("masters", BufferCategory::kMasterWeights, DType::kFloat32, Own(g), offload_.masters);
          break;
        case MasterWeights::kSplit:
          g.low = Add("low_bits", BufferCategory::kMasterWeights, DType::kInt16, Own(g), offload_.masters);
          break;
        case MasterWeights::kNone: break;
      }
    }
    g.states.resize(state.states.size());
    for (const UpdateState& s : options_.OptimizerOf(group_).states()) {
      const int64_t elements = g.PlacementOf(s).elements(g.placement.placement().state) / s.block;
      // The others are so small that they stay on the device.
      const bool moves = s.extent == StateExtent::kElements && offload_.moments;
      g.states[state.Find(s)] = Add(s.name, BufferCategory::kOptimizerState, s.dtype, elements, moves);
    }
    for (size_t i = 0; i < group_.parameters.size(); ++i) {
      if (!Decays(model_.parameters[group_.parameters[i]], options_)) continue;
      g.decayed.push_back(g.layout().parameters()[i].range());
    }
  }

  // Copies of what is saved.
  void Snapshot(const JobState& state, GroupState& g) const {
    const auto copy = [&](absl::string_view what, const Tensor& t) {
      if (!t.present()) return Tensor();
      return Add(absl::StrCat("snapshot.", what), BufferCategory::kSnapshot, t.dtype, t.elements(),
                 writer_.IsOnHost(t));
    };
    g.snapshot = {
        .value = copy("value", g.saved.value), .high = copy("high", g.saved.high), .low = copy("low", g.saved.low)};
    for (size_t i = 0; i < g.saved.states.size(); ++i) {
      g.snapshot.states.push_back(copy(state.states[i].name, g.saved.states[i]));
    }
  }

 private:
  Tensor Add(absl::string_view what, BufferCategory category, DType dtype, int64_t elements,
             bool on_host = false) const {
    return writer_.AddTensor(absl::StrCat(group_.name, ".", what), category, Tensor::Contiguous(dtype, {elements}), 1,
                             /*persistent=*/true, on_host ? MemoryKind::kHost : MemoryKind::kDevice);
  }

  static int64_t Own(const GroupState& g) { return g.placement.elements(g.placement.placement().state); }

  const ModelGraph& model_;
  const ParameterGroup& group_;
  const StepOptions& options_;
  ProgramWriter& writer_;
  const StateOffload offload_;
};

// Refuses groups whose values a checkpoint could not hold in one form: it has one for all parameters that train, and
// one for those that are frozen and not quantized.
absl::Status CheckSavedForms(const ModelGraph& model, const JobState& state) {
  for (const bool frozen : {false, true}) {
    const GroupState* first = nullptr;
    for (size_t i = 0; i < state.groups.size(); ++i) {
      const GroupState& g = state.groups[i];
      if (g.frozen != frozen || RowOf(g.storage).quantized) continue;
      if (first == nullptr) first = &g;
      if (g.saved.value.present() == first->saved.value.present()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "parameters of two dtypes ", frozen ? "are frozen" : "train", ", and a checkpoint holds them in one: ",
          model.parameters[model.groups[i].parameters[0]].name, " is used in ", ToString(model.groups[i].dtype),
          frozen ? "; freeze parameters of one dtype" : "; use precision.master MASTER_FP32"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SavedTensors::bytes() const {
  int64_t bytes = 0;
  for (const Tensor& t : {value, high, low, nf4_codes, nf4_absmax, nf4_scales, nf4_means}) bytes += t.extent_bytes();
  for (const Tensor& t : states) bytes += t.extent_bytes();
  return bytes;
}

absl::StatusOr<JobState> DeclareState(const ModelGraph& model, const StepOptions& options, ProgramWriter& writer) {
  JobState state{.states = StatesOfGroups(model, options)};
  for (const ParameterGroup& group : model.groups) {
    SHALE_ASSIGN_OR_RETURN(GroupState g, PlaceGroup(model, group, options));
    const GroupDeclarer declarer(model, group, options, writer);
    declarer.Weights(g);
    if (!group.frozen) {
      if (HasFactors(options.OptimizerOf(group))) {
        SHALE_RETURN_IF_ERROR(PlaceFactors(model, group, options, g));
      }
      declarer.MastersAndStates(state, g);
      g.saved = SavedOf(g, state.states);
      if (options.snapshot) declarer.Snapshot(state, g);
    } else {
      g.saved = g.snapshot = SavedOf(g, {});
    }
    state.groups.push_back(std::move(g));
  }
  // Programs that only read weights keep no masters, and save nothing.
  if (model.mode == GraphMode::kTraining) SHALE_RETURN_IF_ERROR(CheckSavedForms(model, state));
  state.update_count = writer.AddTensor("update_count", BufferCategory::kOptimizerState,
                                        Tensor::Contiguous(DType::kInt64, {1}), 1, /*persistent=*/true);
  if (options.clipping == Clipping::kPreviousNorm) {
    state.previous_norm = writer.AddTensor("previous_norm", BufferCategory::kOptimizerState,
                                           Tensor::Contiguous(DType::kFloat64, {1}), 1, /*persistent=*/true);
  }
  if (options.loss_scaling) {
    state.loss_scale = writer.AddTensor("loss_scaling", BufferCategory::kOptimizerState,
                                        Tensor::Contiguous(DType::kFloat64, {kLossScaleSize}), 1, /*persistent=*/true);
    state.init_loss_scale = options.loss_scaling->init_scale;
  }
  state.totals = writer.AddTensor("totals", BufferCategory::kData, Tensor::Contiguous(DType::kFloat64, {kTotalSize}), 1,
                                  /*persistent=*/true);
  DeclareGradients(model, options, state, writer);
  return state;
}

}  // namespace shale
