#include "engine/run/state/rank_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/storage.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/fill_loops.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Returns the tensor of a part of the values, absent if the state has no such part.
const Tensor& PartOf(const SavedTensors& tensors, SavedPart part) {
  switch (part) {
    case SavedPart::kValue: return tensors.value;
    case SavedPart::kHigh: return tensors.high;
    case SavedPart::kLow: return tensors.low;
    case SavedPart::kNf4Codes: return tensors.nf4_codes;
    case SavedPart::kNf4Absmax: return tensors.nf4_absmax;
    case SavedPart::kNf4Scales: return tensors.nf4_scales;
    case SavedPart::kNf4Means: return tensors.nf4_means;
    case SavedPart::kFirstState: break;  // States have their own way.
  }
  SHALE_CHECK(false) << "part " << static_cast<int>(part) << " is a state";
  return tensors.value;
}

SavedValues FormOf(const SavedTensors& saved) {
  if (saved.value.present()) return SavedValues::kFloat32;
  return saved.low.present() ? SavedValues::kSplit : SavedValues::kBFloat16;
}

// Returns the blocks that a range of elements touches. REQUIRES: the range begins at a whole block.
ElementRange Blocks(ElementRange elements, int64_t block) {
  if (elements.begin >= elements.end) return {};
  return {elements.begin / block, CeilDivide(elements.end, block)};
}

}  // namespace

SavedValues SavedValuesOf(const JobState& state) { return FormOf(state.groups[state.Trained()[0]].saved); }

SavedValues FrozenValuesOf(const JobState& state) {
  for (const GroupState& g : state.groups) {
    if (g.frozen && !RowOf(g.storage).quantized) return FormOf(g.saved);
  }
  return SavedValues::kFloat32;
}

RankState::RankState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, RankRuntime& runtime)
    : model_(model),
      state_(state),
      plan_(plan),
      runtime_(runtime),
      states_(SavedStatesOf(state)),
      declared_(DeclaredStates(state)) {}

std::byte* RankState::Address(const Tensor& tensor, int64_t element) const {
  return runtime_.Address(plan_, tensor.where) + element * SizeOf(tensor.dtype);
}

absl::Status RankState::Store(const Tensor& tensor, int64_t element, const void* from, int64_t count) {
  return runtime_.Write(Address(tensor, element), from, count * SizeOf(tensor.dtype));
}

absl::Status RankState::Load(const Tensor& tensor, int64_t element, void* to, int64_t count) const {
  return runtime_.Read(Address(tensor, element), to, count * SizeOf(tensor.dtype));
}

absl::Status RankState::CopyToHostWeight(const GroupState& g, std::optional<ElementRange> of_own) {
  if (!g.host_weight.present() || g.host_weight.where.symbol == g.own_weight.where.symbol) return absl::OkStatus();
  const ElementRange part = of_own.value_or(ElementRange{0, g.own_weight.elements()});
  if (part.begin == part.end) return absl::OkStatus();
  return Load(g.own_weight, part.begin, Address(g.host_weight, part.begin), part.end - part.begin);
}

ElementRange RankState::OfParameter(ParameterId id, ElementRange of_group) const {
  const Parameter& parameter = model_.parameters[id];
  const ElementRange here = state_.groups[parameter.group].layout().Find(parameter.name)->range();
  const ElementRange common = Intersect(of_group, here);
  return {common.begin - here.begin, common.end - here.begin};
}

RankState::OwnedPart RankState::OwnedPartOf(ParameterId id, ElementRange elements) const {
  const Parameter& parameter = model_.parameters[id];
  SHALE_CHECK(elements.begin >= 0 && elements.end <= parameter.elements()) << parameter.name;
  const GroupState& g = state_.groups[parameter.group];
  const ElementRange mine = Intersect(OfParameter(id, Owned(g)), elements);
  if (mine.begin == mine.end) return {.range = {elements.begin, elements.begin}};
  return {mine, g.layout().Find(parameter.name)->offset_elements + mine.begin - Owned(g).begin};
}

std::vector<PieceSource> RankState::Pieces(Source source, const Manifest& manifest) const {
  std::vector<PieceSource> pieces;
  const bool nf4 = std::any_of(state_.groups.begin(), state_.groups.end(),
                               [](const GroupState& g) { return RowOf(g.storage).quantized; });
  for (const PartSpec& spec : PartsOf(SavedValuesOf(state_), FrozenValuesOf(state_), states_, nf4)) {
    if (StateOf(spec.part) >= 0) {
      AddStatePieces(spec, source, manifest, pieces);
      continue;
    }
    for (size_t group = 0; group < state_.groups.size(); ++group) {
      const GroupState& g = state_.groups[group];
      const Tensor& tensor = PartOf(source == Source::kSnapshot ? g.snapshot : g.saved, spec.part);
      if (!tensor.present()) continue;
      for (const ShardLayout::Piece& piece : g.placement.Saved(runtime_.rank())) {
        const ParameterId id = model_.groups[group].parameters[piece.parameter];
        if (manifest.parameters[id].in_base) continue;
        pieces.push_back({id, spec.part, Blocks(piece.range, spec.block), spec.element_bytes(),
                          Address(tensor, piece.shard_offset / spec.block)});
      }
    }
  }
  return pieces;
}

bool RankState::JoinsFloats(const GroupState& g) const {
  return g.master.present() || g.own_weight.dtype == DType::kFloat32;
}

void RankState::MakeResident(bool states) {
  std::vector<ByteRange> ranges;
  const auto add = [&](const Tensor& tensor, ElementRange range) {
    if (!tensor.present() || plan_.addresses[tensor.where.symbol] >= kHostMemoryBegin) return;
    const int64_t begin = Address(tensor, 0) - runtime_.arena().base();
    ranges.push_back({begin, begin + (range.end - range.begin) * SizeOf(tensor.dtype)});
  };
  for (const GroupState& g : state_.groups) {
    add(g.weights(), {0, g.weights().elements()});
    for (const Tensor& tensor : {g.master, g.low}) add(tensor, Owned(g));
    if (!states) continue;
    for (size_t i = 0; i < g.states.size(); ++i) {
      if (g.states[i].present()) add(g.states[i], Owned(g, state_.states[i]));
    }
  }
  runtime_.arena().MakeResident(ranges);
}

absl::Status RankState::ZeroValues(const GroupState& g, char* work) {
  std::memset(work, 0, kWorkBytes);
  const auto zero = [&](const Tensor& tensor, ElementRange range) -> absl::Status {
    if (!tensor.present()) return absl::OkStatus();
    const int64_t count = range.end - range.begin;
    for (int64_t at = 0; at < count; at += kWorkFloats) {
      SHALE_RETURN_IF_ERROR(Store(tensor, at, work, std::min(kWorkFloats, count - at)));
    }
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(zero(g.master, Owned(g)));
  SHALE_RETURN_IF_ERROR(zero(g.low, Owned(g)));
  if (g.own_weight.dtype != DType::kFloat32) return absl::OkStatus();
  return zero(g.weights(), Weights(g));
}

absl::Status RankState::Restore(const CheckpointReader& checkpoint, bool values_only, absl::Span<char> staging) {
  SHALE_CHECK(checkpoint.manifest().parameters.size() == model_.parameters.size());
  for (size_t i = 0; i < model_.parameters.size(); ++i) {
    const bool nf4 = RowOf(model_.parameters[i].storage).quantized;
    if (nf4 == checkpoint.manifest().parameters[i].nf4) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.folder(), ": parameter ", model_.parameters[i].name, nf4 ? " is not" : " is",
                     " saved in NF4, unlike in the job; keep optimizer.frozen_weights of the checkpoint's run"));
  }
  SHALE_CHECK(std::ssize(staging) >= kReadStagingBytes);
  MakeResident(/*states=*/!values_only);
  char* const work = staging.data() + kCheckpointChunkBytes;
  const Manifest& manifest = checkpoint.manifest();
  const bool halves = manifest.values != SavedValues::kFloat32 || manifest.frozen_values != SavedValues::kFloat32;
  const auto is_fp16 = [](const GroupState& g) { return g.own_weight.dtype == DType::kFloat16; };
  if (halves && std::any_of(state_.groups.begin(), state_.groups.end(), is_fp16)) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.folder(),
                     " holds weights in bf16, of precision.master SPLIT or NONE, which compute FP16 "
                     "does not read; use compute BF16 or FP32"));
  }
  if (halves) {
    // The pieces below add the halves of a float, and set no low bits if the checkpoint has none.
    for (const GroupState& g : state_.groups) SHALE_RETURN_IF_ERROR(ZeroValues(g, work));
  }
  const auto wanted = [&](const ShardPiece& piece) -> ElementRange {
    const GroupState& g = state_.groups[model_.parameters[piece.parameter].group];
    switch (piece.part) {
      // A bf16 weight is the upper half alone: only masters and fp32 weights need the lower half.
      case SavedPart::kLow:
        if (!JoinsFloats(g) && !g.low.present()) return {};
        return OfParameter(piece.parameter, g.own_weight.dtype == DType::kFloat32 ? Weights(g) : Owned(g));
      case SavedPart::kValue:
      case SavedPart::kHigh: return OfParameter(piece.parameter, Weights(g));
      default:
        if (IsNf4(piece.part)) return Blocks(OfParameter(piece.parameter, Weights(g)), BlockOf(piece.part, states_));
        if (values_only || g.frozen) return {};
        const int state = RestoredBy(checkpoint.manifest(), piece.part, g);
        return OwnedPartOf(state, piece.parameter, {0, ElementsOf(state, piece.parameter)}).range;
    }
  };
  const auto sink = [&](const ShardPiece& piece, const char* bytes) {
    return Put(checkpoint.manifest(), piece, bytes, work);
  };
  SHALE_RETURN_IF_ERROR(checkpoint.Stream(wanted, sink, staging.first(kCheckpointChunkBytes)));
  if (!values_only) SHALE_RETURN_IF_ERROR(ZeroCodesBetweenParameters(work));
  for (const GroupState& g : state_.groups) SHALE_RETURN_IF_ERROR(CopyToHostWeight(g));
  std::memcpy(work, &checkpoint.manifest().update_count, sizeof(int64_t));
  SHALE_RETURN_IF_ERROR(Store(state_.update_count, 0, work, 1));
  SHALE_RETURN_IF_ERROR(StoreLossScale(manifest.loss_scale));
  if (!state_.previous_norm.present()) return absl::OkStatus();
  std::memcpy(work, &checkpoint.manifest().previous_norm, sizeof(double));
  return Store(state_.previous_norm, 0, work, 1);
}

absl::Status RankState::Put(const Manifest& saved, const ShardPiece& piece, const char* bytes, char* work) {
  const Parameter& parameter = model_.parameters[piece.parameter];
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements, flat = offset + piece.range.begin;
  const int64_t count = piece.range.end - piece.range.begin;
  switch (piece.part) {
    case SavedPart::kValue: return PutValues(g, flat, reinterpret_cast<const float*>(bytes), count, work);
    case SavedPart::kHigh:
    case SavedPart::kLow: return PutHalf(g, flat, piece.part, reinterpret_cast<const uint16_t*>(bytes), count, work);
    default: {
      if (IsNf4(piece.part)) return PutNf4(g, offset, piece, bytes);
      const int state = RestoredBy(saved, piece.part, g);
      return PutState(TensorOf(state, piece.parameter), OwnedPartOf(state, piece.parameter, piece.range).at_owned,
                      saved.states[StateOf(piece.part)].dtype, bytes, count, work);
    }
  }
}

absl::Status RankState::PutValues(const GroupState& g, int64_t flat, const float* values, int64_t count, char* work) {
  const ElementRange weights = Weights(g), owned = Intersect(Owned(g), {flat, flat + count});
  const Tensor& weight = g.weights();
  if (weight.dtype == DType::kFloat32) {
    SHALE_RETURN_IF_ERROR(Store(weight, flat - weights.begin, values, count));
  } else {
    RoundMasters(values, count, weight.dtype, work);
    SHALE_RETURN_IF_ERROR(Store(weight, flat - weights.begin, work, count));
  }
  if (owned.begin == owned.end) return absl::OkStatus();
  const float* mine = values + (owned.begin - flat);
  const int64_t at = owned.begin - Owned(g).begin, size = owned.end - owned.begin;
  if (g.master.present()) SHALE_RETURN_IF_ERROR(Store(g.master, at, mine, size));
  if (!g.low.present()) return absl::OkStatus();
  TakeLowBits(mine, size, reinterpret_cast<int16_t*>(work));
  return Store(g.low, at, work, size);
}

// The bits of a float are those of its bf16 weight, shifted up, plus the sign-extended low bits (JoinMaster). The
// halves are added, so they may come in any order.
absl::Status RankState::AddHalf(const Tensor& to, int64_t element, SavedPart half, const uint16_t* bits, int64_t count,
                                char* work) {
  for (int64_t begin = 0; begin < count; begin += kWorkFloats) {
    const int64_t size = std::min(kWorkFloats, count - begin);
    SHALE_RETURN_IF_ERROR(Load(to, element + begin, work, size));
    auto* words = reinterpret_cast<uint32_t*>(work);
    for (int64_t i = 0; i < size; ++i) {
      const uint16_t b = bits[begin + i];
      words[i] += half == SavedPart::kHigh ? static_cast<uint32_t>(b) << 16
                                           : static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(b)));
    }
    SHALE_RETURN_IF_ERROR(Store(to, element + begin, work, size));
  }
  return absl::OkStatus();
}

absl::Status RankState::PutHalf(const GroupState& g, int64_t flat, SavedPart half, const uint16_t* bits, int64_t count,
                                char* work) {
  const ElementRange owned = Intersect(Owned(g), {flat, flat + count});
  const Tensor& weight = g.weights();
  if (weight.dtype == DType::kFloat32) {
    SHALE_RETURN_IF_ERROR(AddHalf(weight, flat - Weights(g).begin, half, bits, count, work));
  } else if (half == SavedPart::kHigh) {
    SHALE_RETURN_IF_ERROR(Store(weight, flat - Weights(g).begin, bits, count));
  }
  if (owned.begin == owned.end) return absl::OkStatus();
  const int64_t at = owned.begin - Owned(g).begin, size = owned.end - owned.begin;
  bits += owned.begin - flat;
  if (g.master.present()) SHALE_RETURN_IF_ERROR(AddHalf(g.master, at, half, bits, size, work));
  if (g.low.present() && half == SavedPart::kLow) return Store(g.low, at, bits, size);
  return absl::OkStatus();
}

absl::Status RankState::Write(ParameterId id, int64_t begin, absl::Span<const float> values) {
  const Parameter& parameter = model_.parameters[id];
  SHALE_CHECK(begin >= 0 && begin + std::ssize(values) <= parameter.elements()) << parameter.name;
  const GroupState& g = state_.groups[parameter.group];
  if (RowOf(g.storage).quantized) return WriteNf4(parameter, begin, values);
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements;
  const ElementRange mine = Intersect(OfParameter(id, Weights(g)), {begin, begin + std::ssize(values)});
  std::vector<char> work(WorkBytesFor(mine.end - mine.begin));
  for (int64_t at = mine.begin; at < mine.end; at += kWorkFloats) {
    const int64_t count = std::min(kWorkFloats, mine.end - at);
    SHALE_RETURN_IF_ERROR(PutValues(g, offset + at, values.data() + (at - begin), count, work.data()));
  }
  const OwnedPart own = OwnedPartOf(id, {begin, begin + std::ssize(values)});
  return CopyToHostWeight(g, ElementRange{own.at_owned, own.at_owned + own.size()});
}

absl::StatusOr<int64_t> RankState::Read(Values what, ParameterId id, int64_t begin, absl::Span<float> values) const {
  const GroupState& g = state_.groups[model_.parameters[id].group];
  const OwnedPart own = OwnedPartOf(id, {begin, begin + std::ssize(values)});
  const bool gradient = what == Values::kGradient;
  if (gradient && !state_.keeps_gradients) {
    return absl::FailedPreconditionError(
        "the gradients of a step are gone after its update; to read them, set memory.keep_gradients");
  }
  if (gradient) SHALE_RETURN_IF_ERROR(CheckTrains(id));
  if (RowOf(g.storage).quantized) {
    const int64_t offset = g.layout().Find(model_.parameters[id].name)->offset_elements;
    SHALE_RETURN_IF_ERROR(ReadNf4(g, offset + own.range.begin, values.subspan(own.range.begin - begin, own.size())));
    return own.size();
  }
  const Tensor& from = gradient ? g.own_gradient : g.master.present() ? g.master : g.own_weight;
  return LoadFloats(from, gradient ? Tensor() : g.low, own, values.data() + (own.range.begin - begin));
}

absl::Status RankState::CheckTrains(ParameterId id) const {
  if (!model_.parameters[id].frozen) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(model_.parameters[id].name,
                   " is frozen (optimizer.train_only, model.adapter): it has no gradient and no state "
                   "of the optimizer"));
}

absl::StatusOr<int64_t> RankState::LoadFloats(const Tensor& from, const Tensor& low, const OwnedPart& own,
                                              float* to) const {
  const int64_t count = own.size();
  if (count == 0) return 0;
  if (from.dtype == DType::kFloat32) {
    SHALE_RETURN_IF_ERROR(Load(from, own.at_owned, to, count));
    return count;
  }
  if (from.dtype == DType::kFloat16) {
    std::vector<Float16> halves(count);
    SHALE_RETURN_IF_ERROR(Load(from, own.at_owned, halves.data(), count));
    std::transform(halves.begin(), halves.end(), to, [](Float16 half) { return ToFloat(half); });
    return count;
  }
  std::vector<BFloat16> high(count);
  std::vector<int16_t> low_bits(count);  // Stays 0 if there are none: JoinMaster(high, 0) is `high`.
  SHALE_RETURN_IF_ERROR(Load(from, own.at_owned, high.data(), count));
  if (low.present()) SHALE_RETURN_IF_ERROR(Load(low, own.at_owned, low_bits.data(), count));
  for (int64_t i = 0; i < count; ++i) to[i] = JoinMaster(high[i], low_bits[i]);
  return count;
}

absl::StatusOr<absl::Span<char>> StagingOf(RankRuntime& rank, int64_t bytes) {
  const absl::Span<std::byte> staging = rank.staging();
  if (std::ssize(staging) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("reading or writing a rank's state needs ", bytes,
                                                   " bytes of staging, the rank has ", staging.size()));
  }
  return absl::MakeSpan(reinterpret_cast<char*>(staging.data()), staging.size());
}

}  // namespace shale
