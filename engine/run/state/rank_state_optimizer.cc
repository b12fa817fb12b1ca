// The part of RankState that handles what the optimizer keeps beside the weights: its states, the loss scale, and the
// other scalars.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/storage.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/rank_state.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Returns a state as checkpoints have it. One of rows and columns is three: those of matrices, and that of vectors.
std::vector<SavedState> SavedFormsOf(const UpdateState& state) {
  if (state.extent == StateExtent::kElements) return {{std::string(state.name), state.dtype, state.block}};
  return {{absl::StrCat("row_", state.name), state.dtype, 1, SavedExtent::kRows},
          {absl::StrCat("column_", state.name), state.dtype, 1, SavedExtent::kColumns},
          {absl::StrCat("vector_", state.name), state.dtype}};
}

// Returns whether a parameter that has a state has this form of it.
bool HasForm(const UpdateState& state, const SavedState& form, absl::Span<const int64_t> shape) {
  return state.extent == StateExtent::kElements || (form.extent == SavedExtent::kElements) == (shape.size() < 2);
}

}  // namespace

std::vector<SavedState> SavedStatesOf(const JobState& state) {
  std::vector<SavedState> saved;
  for (const UpdateState& s : state.states) {
    for (SavedState& form : SavedFormsOf(s)) saved.push_back(std::move(form));
  }
  return saved;
}

std::vector<SavedState> SavedStatesOf(const Optimizer& optimizer, const Parameter& parameter) {
  std::vector<SavedState> saved;
  for (const UpdateState& s : optimizer.states()) {
    for (SavedState& form : SavedFormsOf(s)) {
      if (HasForm(s, form, parameter.shape)) saved.push_back(std::move(form));
    }
  }
  return saved;
}

std::vector<int> RankState::DeclaredStates(const JobState& state) {
  std::vector<int> declared;
  for (int i = 0; i < std::ssize(state.states); ++i)
    declared.insert(declared.end(), SavedFormsOf(state.states[i]).size(), i);
  return declared;
}

std::vector<SavedParameter> SavedParametersOf(const ModelGraph& model, const JobState& state) {
  std::vector<SavedParameter> saved;
  for (const Parameter& p : model.parameters) {
    saved.push_back({p.name, p.shape, p.frozen, RowOf(p.storage).quantized});
    if (p.frozen) continue;
    std::vector<int64_t> states;
    int64_t all = 0;
    for (size_t i = 0; i < state.states.size(); ++i) {
      for (const SavedState& form : SavedFormsOf(state.states[i])) {
        const bool has = state.groups[p.group].states[i].present() && HasForm(state.states[i], form, p.shape);
        if (has) states.push_back(all);
        ++all;
      }
    }
    if (std::ssize(states) < all) saved.back().states = std::move(states);
  }
  return saved;
}

bool CanRestoreStates(absl::Span<const SavedState> saved, absl::Span<const SavedState> states) {
  return std::is_permutation(saved.begin(), saved.end(), states.begin(), states.end(), Convertible);
}

ElementRange RankState::PlaceOf(int64_t state, ParameterId id) const {
  const Parameter& parameter = model_.parameters[id];
  const GroupState& g = state_.groups[parameter.group];
  const UpdateState& declared = Declared(state);
  const bool has = !parameter.frozen && TensorOf(state, id).present();
  if (!has || !HasForm(declared, states_[state], parameter.shape)) return {};
  const ShardLayout::PlacedParameter* const placed = g.layout().Find(parameter.name);
  if (declared.extent == StateExtent::kElements) {
    const int64_t begin = placed->offset_elements / declared.block;
    return {begin, begin + CeilDivide(placed->elements, declared.block)};
  }
  const FactoredParameter& factored = (*g.factored)[placed - g.layout().parameters().data()];
  if (states_[state].extent == SavedExtent::kRows) return {factored.row_begin, factored.row_begin + factored.rows};
  return {factored.column_begin, factored.column_begin + factored.columns};
}

ElementRange RankState::Owned(const GroupState& g, const UpdateState& state) const {
  const ElementRange owned = g.PlacementOf(state).Owned(runtime_.rank());
  return {owned.begin / state.block, owned.end / state.block};
}

void RankState::AddStatePieces(const PartSpec& spec, Source source, const Manifest& manifest,
                               std::vector<PieceSource>& pieces) const {
  const int64_t state = StateOf(spec.part);
  const UpdateState& declared = Declared(state);
  for (size_t group = 0; group < state_.groups.size(); ++group) {
    const GroupState& g = state_.groups[group];
    if (g.frozen || !g.states[declared_[state]].present()) continue;
    const Tensor& tensor = (source == Source::kSnapshot ? g.snapshot : g.saved).states[declared_[state]];
    const GroupPlacement& placement = g.PlacementOf(declared);
    const ElementRange range = placement.SavedRange(runtime_.rank());
    const int64_t shard_begin = placement.Range(Part::kShard, runtime_.rank()).begin / declared.block;
    for (const ParameterId id : model_.groups[group].parameters) {
      const ElementRange place = PlaceOf(state, id);
      const ElementRange mine = Intersect({range.begin / declared.block, range.end / declared.block}, place);
      if (mine.begin == mine.end || manifest.parameters[id].in_base) continue;
      pieces.push_back({id,
                        spec.part,
                        {mine.begin - place.begin, mine.end - place.begin},
                        spec.element_bytes(),
                        Address(tensor, mine.begin - shard_begin)});
    }
  }
}

int RankState::RestoredBy(const Manifest& saved, SavedPart part, const GroupState& g) const {
  for (int i = 0; i < std::ssize(states_); ++i) {
    if (g.states[declared_[i]].present() && Convertible(saved.states[StateOf(part)], states_[i])) return i;
  }
  SHALE_CHECK(false) << "CanRestoreStates does not hold for the checkpoint";
  return -1;
}

absl::Status RankState::StoreLossScale(const SavedLossScale& saved) {
  if (!state_.loss_scale.present()) return absl::OkStatus();
  double scale[kLossScaleSize];
  scale[kLossScaleFactor] = saved.factor > 0 ? saved.factor : state_.init_loss_scale;
  scale[kLossScaleGoodSteps] = static_cast<double>(saved.good_steps);
  scale[kLossScaleSkips] = static_cast<double>(saved.skips);
  return Store(state_.loss_scale, 0, scale, kLossScaleSize);
}

absl::Status RankState::ZeroCodesBetweenParameters(char* work) {
  for (const GroupState& g : state_.groups) {
    const ElementRange owned = Owned(g);
    for (size_t i = 0; i < g.states.size(); ++i) {
      if (g.states[i].dtype != DType::kUInt8) continue;
      std::memset(work, state_.states[i].zero_code, kWorkBytes);
      for (const ElementRange& gap : g.layout().gaps()) {
        const ElementRange mine = Intersect(gap, owned);
        for (int64_t at = mine.begin; at < mine.end; at += kWorkBytes) {
          SHALE_RETURN_IF_ERROR(Store(g.states[i], at - owned.begin, work, std::min(kWorkBytes, mine.end - at)));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RankState::PutState(const Tensor& to, int64_t element, DType saved, const char* bytes, int64_t count,
                                 char* work) {
  if (saved == to.dtype) return Store(to, element, bytes, count);
  for (int64_t begin = 0; begin < count; begin += kWorkFloats) {
    const int64_t size = std::min(kWorkFloats, count - begin);
    if (saved == DType::kFloat32) {
      const auto* values = reinterpret_cast<const float*>(bytes) + begin;
      std::transform(values, values + size, reinterpret_cast<BFloat16*>(work), RoundToBFloat16);
    } else {
      const auto* values = reinterpret_cast<const BFloat16*>(bytes) + begin;
      std::transform(values, values + size, reinterpret_cast<float*>(work), [](BFloat16 v) { return ToFloat(v); });
    }
    SHALE_RETURN_IF_ERROR(Store(to, element + begin, work, size));
  }
  return absl::OkStatus();
}

int64_t RankState::ElementsOf(int state, ParameterId id) const {
  const ElementRange place = PlaceOf(state, id);
  return place.end - place.begin;
}

const Tensor& RankState::TensorOf(int64_t state, ParameterId id) const {
  return state_.groups[model_.parameters[id].group].states[declared_[state]];
}

RankState::OwnedPart RankState::OwnedPartOf(int state, ParameterId id, ElementRange elements) const {
  const ElementRange owned = Owned(state_.groups[model_.parameters[id].group], Declared(state));
  const int64_t begin = PlaceOf(state, id).begin;
  const ElementRange mine = Intersect(owned, {begin + elements.begin, begin + elements.end});
  if (mine.begin == mine.end) return {.range = {elements.begin, elements.begin}};
  return {{mine.begin - begin, mine.end - begin}, mine.begin - owned.begin};
}

absl::Status RankState::WriteState(int state, ParameterId id, int64_t begin, absl::Span<const float> values) {
  SHALE_RETURN_IF_ERROR(CheckTrains(id));
  const OwnedPart own = OwnedPartOf(state, id, {begin, begin + std::ssize(values)});
  if (own.size() == 0) return absl::OkStatus();
  const Tensor& to = TensorOf(state, id);
  const auto* from = reinterpret_cast<const char*>(values.data() + (own.range.begin - begin));
  std::vector<char> work(WorkBytesFor(own.size()));
  return PutState(to, own.at_owned, DType::kFloat32, from, own.size(), work.data());
}

absl::StatusOr<int64_t> RankState::ReadState(int state, ParameterId id, int64_t begin, absl::Span<float> values) const {
  SHALE_RETURN_IF_ERROR(CheckTrains(id));
  const OwnedPart own = OwnedPartOf(state, id, {begin, begin + std::ssize(values)});
  return LoadFloats(TensorOf(state, id), Tensor(), own, values.data() + (own.range.begin - begin));
}

absl::Status RankState::ReadScalars(Manifest& manifest) const {
  SHALE_RETURN_IF_ERROR(Load(state_.update_count, 0, &manifest.update_count, 1));
  if (state_.loss_scale.present()) {
    double scale[kLossScaleSize];
    SHALE_RETURN_IF_ERROR(Load(state_.loss_scale, 0, scale, kLossScaleSize));
    manifest.loss_scale = {scale[kLossScaleFactor], static_cast<int64_t>(scale[kLossScaleGoodSteps]),
                           static_cast<int64_t>(scale[kLossScaleSkips])};
  }
  if (!state_.previous_norm.present()) return absl::OkStatus();
  return Load(state_.previous_norm, 0, &manifest.previous_norm, 1);
}

}  // namespace shale
