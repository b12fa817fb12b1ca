// The part of RankState that handles what the optimizer keeps beside the weights: states of elements, Adafactor's
// factors, the loss scale, and the other scalars.
#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/compile/graph/storage.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/rank_state.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Return Adafactor's factors: those of matrices, and those of vectors. A job has them in this order.
SavedState RowMoments() { return {.name = "row_moments", .extent = SavedExtent::kRows}; }
SavedState ColumnMoments() { return {.name = "column_moments", .extent = SavedExtent::kColumns}; }
SavedState VectorMoments() { return {.name = "vector_moments"}; }

std::vector<SavedState> SavedStatesOf(absl::Span<const UpdateState> states) {
  std::vector<SavedState> saved;
  for (const UpdateState& state : states) saved.push_back({std::string(state.name), state.dtype, state.block});
  return saved;
}

}  // namespace

std::vector<SavedState> SavedStatesOf(const JobState& state) {
  std::vector<SavedState> saved = SavedStatesOf(state.states);
  const auto factors = [](const GroupState& g) { return g.factors.present(); };
  if (std::any_of(state.groups.begin(), state.groups.end(), factors)) {
    saved.insert(saved.end(), {RowMoments(), ColumnMoments(), VectorMoments()});
  }
  return saved;
}

std::vector<SavedState> SavedStatesOf(const Optimizer& optimizer, const Parameter& parameter) {
  std::vector<SavedState> saved = SavedStatesOf(optimizer.states());
  if (!optimizer.factored) return saved;
  if (parameter.shape.size() < 2) {
    saved.push_back(VectorMoments());
  } else {
    saved.insert(saved.end(), {RowMoments(), ColumnMoments()});
  }
  return saved;
}

std::vector<SavedParameter> SavedParametersOf(const ModelGraph& model, const JobState& state) {
  std::vector<SavedParameter> saved;
  for (const Parameter& p : model.parameters) {
    saved.push_back({p.name, p.shape, p.frozen, RowOf(p.storage).quantized});
    if (p.frozen) continue;
    std::vector<int64_t> states;
    const GroupState& g = state.groups[p.group];
    const int64_t all = std::ssize(SavedStatesOf(state)), of_elements = std::ssize(state.states);
    for (int64_t i = 0; i < of_elements; ++i) {
      if (g.states[i].present()) states.push_back(i);
    }
    if (g.factors.present() && p.shape.size() >= 2) states.insert(states.end(), {of_elements, of_elements + 1});
    if (g.factors.present() && p.shape.size() < 2) states.push_back(of_elements + 2);
    if (std::ssize(states) < all) saved.back().states = std::move(states);
  }
  return saved;
}

bool CanRestoreStates(absl::Span<const SavedState> saved, absl::Span<const SavedState> states) {
  return std::is_permutation(saved.begin(), saved.end(), states.begin(), states.end(), Convertible);
}

const ShardLayout::PlacedParameter* RankState::FactorsOf(int64_t state, ParameterId id) const {
  const Parameter& parameter = model_.parameters[id];
  const GroupState& g = state_.groups[parameter.group];
  if (!g.factor_placement || (states_[state] == VectorMoments()) != (parameter.shape.size() < 2)) return nullptr;
  const bool rows = states_[state] == RowMoments();
  return g.factor_placement->layout().Find(rows ? RowsOf(parameter.name) : ColumnsOf(parameter.name));
}

void RankState::AddFactors(const PartSpec& spec, Source source, const Manifest& manifest,
                           std::vector<PieceSource>& pieces) const {
  for (size_t group = 0; group < state_.groups.size(); ++group) {
    const GroupState& g = state_.groups[group];
    if (!g.factor_placement) continue;
    const Tensor& tensor = source == Source::kSnapshot ? g.snapshot.factors : g.saved.factors;
    for (const ShardLayout::Piece& piece : g.factor_placement->Saved(runtime_.rank())) {
      const ShardLayout::PlacedParameter* const placed = &g.factor_placement->layout().parameters()[piece.parameter];
      for (const ParameterId id : model_.groups[group].parameters) {
        if (FactorsOf(StateOf(spec.part), id) != placed || manifest.parameters[id].in_base) continue;
        pieces.push_back({id, spec.part, piece.range, spec.element_bytes(), Address(tensor, piece.shard_offset)});
      }
    }
  }
}

int RankState::RestoredBy(const Manifest& saved, SavedPart part, const GroupState& g) const {
  for (int64_t i = 0; i < std::ssize(states_); ++i) {
    if ((IsFactor(i) ? g.factors : g.states[i]).present() && Convertible(saved.states[StateOf(part)], states_[i]))
      return static_cast<int>(i);
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
  const Parameter& parameter = model_.parameters[id];
  if (IsFactor(state)) {
    const ShardLayout::PlacedParameter* const factors = FactorsOf(state, id);
    return factors == nullptr ? 0 : factors->elements;
  }
  return parameter.frozen || !TensorOf(state, id).present() ? 0
                                                            : CeilDivide(parameter.elements(), states_[state].block);
}

const Tensor& RankState::TensorOf(int state, ParameterId id) const {
  const GroupState& g = state_.groups[model_.parameters[id].group];
  return IsFactor(state) ? g.factors : g.states[state];
}

RankState::OwnedPart RankState::OwnedPartOf(int state, ParameterId id, ElementRange elements) const {
  if (!IsFactor(state)) return OwnedPartOf(id, elements);
  const ElementRange owned = state_.groups[model_.parameters[id].group].factor_placement->Owned(runtime_.rank());
  const int64_t offset = FactorsOf(state, id)->offset_elements;
  const ElementRange mine = Intersect(owned, {offset + elements.begin, offset + elements.end});
  if (mine.begin >= mine.end) return {.range = {elements.begin, elements.begin}};
  return {{mine.begin - offset, mine.end - offset}, mine.begin - owned.begin};
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
