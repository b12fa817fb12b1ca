#include "engine/state/rank_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/checkpoint/staging.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Staging for values on their way to the device.
constexpr int64_t kWorkBytes = kReadStagingBytes - kCheckpointChunkBytes;
constexpr int64_t kWorkFloats = kWorkBytes / sizeof(float);

// Returns the tensor of a part, absent if the state has no such part.
const Tensor& PartOf(const SavedTensors& tensors, SavedPart part) {
  switch (part) {
    case SavedPart::kValue: return tensors.value;
    case SavedPart::kHigh: return tensors.high;
    case SavedPart::kLow: return tensors.low;
    default: return tensors.states[StateOf(part)];
  }
}

// Returns the blocks that a range of elements touches. REQUIRES: it begins at a whole block.
ElementRange Blocks(ElementRange elements, int64_t block) {
  if (elements.begin >= elements.end) return {};
  return {elements.begin / block, CeilDivide(elements.end, block)};
}

}  // namespace

std::vector<SavedState> SavedStatesOf(absl::Span<const UpdateState> states) {
  std::vector<SavedState> saved;
  for (const UpdateState& state : states) saved.push_back({std::string(state.name), state.dtype, state.block});
  return saved;
}

RankState::RankState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, RankRuntime& runtime)
    : model_(model), state_(state), plan_(plan), runtime_(runtime), states_(SavedStatesOf(state.states)) {}

std::byte* RankState::Address(const Tensor& tensor, int64_t element) const {
  return runtime_.arena().base() + plan_.addresses[tensor.where.symbol] + tensor.where.offset_bytes +
         runtime_.rank() * tensor.where.rank_stride_bytes + element * SizeOf(tensor.dtype);
}

absl::Status RankState::Write(const Tensor& tensor, int64_t element, const void* from, int64_t count) {
  return runtime_.stream(StreamId::kCopy).CopyAndWait(Address(tensor, element), from, count * SizeOf(tensor.dtype));
}

absl::Status RankState::Read(const Tensor& tensor, int64_t element, void* to, int64_t count) const {
  return runtime_.stream(StreamId::kCopy).CopyAndWait(to, Address(tensor, element), count * SizeOf(tensor.dtype));
}

ElementRange RankState::OfParameter(ParameterId id, ElementRange of_group) const {
  const Parameter& parameter = model_.parameters[id];
  const ElementRange here = state_.groups[parameter.group].layout.Find(parameter.name)->range();
  const ElementRange common = Intersect(of_group, here);
  return {common.begin - here.begin, common.end - here.begin};
}

std::vector<PieceSource> RankState::Pieces(Source source) const {
  std::vector<PieceSource> pieces;
  const SavedValues values = state_.groups[0].low.present() ? SavedValues::kSplit : SavedValues::kFloat32;
  for (const PartSpec& spec : PartsOf(values, states_)) {
    for (size_t group = 0; group < state_.groups.size(); ++group) {
      const GroupState& g = state_.groups[group];
      const Tensor& tensor = PartOf(source == Source::kSnapshot ? g.snapshot : g.saved, spec.part);
      if (!tensor.present()) continue;
      for (const ShardLayout::Piece& piece : g.layout.ParameterPieces(runtime_.rank())) {
        pieces.push_back({model_.groups[group].parameters[piece.parameter], spec.part, Blocks(piece.range, spec.block),
                          spec.element_bytes(), Address(tensor, piece.slice_offset / spec.block)});
      }
    }
  }
  return pieces;
}

bool RankState::JoinsFloats(const GroupState& g) const {
  return g.master.present() || g.own_weight.dtype == DType::kFloat32;
}

void RankState::MakeResident(bool states) {
  std::vector<Arena::Range> ranges;
  const auto add = [&](const Tensor& tensor, ElementRange range) {
    if (!tensor.present()) return;
    const int64_t begin = Address(tensor, 0) - runtime_.arena().base();
    ranges.push_back({begin, begin + (range.end - range.begin) * SizeOf(tensor.dtype)});
  };
  for (const GroupState& g : state_.groups) {
    add(g.weights(), g.Weights(runtime_.rank()));
    for (const Tensor& tensor : {g.master, g.low}) add(tensor, g.Owned(runtime_.rank()));
    if (!states) continue;
    for (size_t i = 0; i < g.states.size(); ++i) add(g.states[i], Blocks(g.Owned(runtime_.rank()), states_[i].block));
  }
  runtime_.arena().MakeResident(ranges);
}

absl::Status RankState::ZeroValues(const GroupState& g, char* work) {
  std::memset(work, 0, kWorkBytes);
  const auto zero = [&](const Tensor& tensor, ElementRange range) -> absl::Status {
    if (!tensor.present()) return absl::OkStatus();
    const int64_t count = range.end - range.begin;
    for (int64_t at = 0; at < count; at += kWorkFloats) {
      SHALE_RETURN_IF_ERROR(Write(tensor, at, work, std::min(kWorkFloats, count - at)));
    }
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(zero(g.master, g.Owned(runtime_.rank())));
  if (g.own_weight.dtype != DType::kFloat32) return absl::OkStatus();
  return zero(g.weights(), g.Weights(runtime_.rank()));
}

absl::Status RankState::Restore(const CheckpointReader& checkpoint, bool values_only, absl::Span<char> staging) {
  SHALE_CHECK(checkpoint.manifest().parameters.size() == model_.parameters.size());
  SHALE_CHECK(std::ssize(staging) >= kReadStagingBytes);
  MakeResident(/*states=*/!values_only);
  char* const work = staging.data() + kCheckpointChunkBytes;
  if (checkpoint.manifest().values == SavedValues::kSplit) {
    for (const GroupState& g : state_.groups) {
      if (JoinsFloats(g)) SHALE_RETURN_IF_ERROR(ZeroValues(g, work));
    }
  }
  const auto wanted = [&](const ShardPiece& piece) -> ElementRange {
    const GroupState& g = state_.groups[model_.parameters[piece.parameter].group];
    switch (piece.part) {
      // bf16 weights are the upper half alone: only masters and fp32 weights need the lower half.
      case SavedPart::kLow:
        return OfParameter(piece.parameter, g.own_weight.dtype == DType::kFloat32 ? g.Weights(runtime_.rank())
                                                                                  : g.Owned(runtime_.rank()));
      case SavedPart::kValue:
      case SavedPart::kHigh: return OfParameter(piece.parameter, g.Weights(runtime_.rank()));
      default:
        if (values_only) return {};
        return Blocks(OfParameter(piece.parameter, g.Owned(runtime_.rank())), states_[StateOf(piece.part)].block);
    }
  };
  const auto sink = [&](const ShardPiece& piece, const char* bytes) { return Put(piece, bytes, work); };
  SHALE_RETURN_IF_ERROR(checkpoint.Stream(wanted, sink, staging.first(kCheckpointChunkBytes)));
  std::memcpy(work, &checkpoint.manifest().update_count, sizeof(int64_t));
  return Write(state_.update_count, 0, work, 1);
}

absl::Status RankState::Put(const ShardPiece& piece, const char* bytes, char* work) {
  const Parameter& parameter = model_.parameters[piece.parameter];
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout.Find(parameter.name)->offset_elements, flat = offset + piece.range.begin;
  const int64_t count = piece.range.end - piece.range.begin;
  switch (piece.part) {
    case SavedPart::kValue: return PutValues(g, flat, reinterpret_cast<const float*>(bytes), count, work);
    case SavedPart::kHigh:
    case SavedPart::kLow: return PutHalf(g, flat, piece.part, reinterpret_cast<const uint16_t*>(bytes), count, work);
    default: {
      // Parameters and shards begin at whole blocks.
      const int64_t state = StateOf(piece.part), block = states_[state].block;
      return Write(g.states[state], (offset - g.Owned(runtime_.rank()).begin) / block + piece.range.begin, bytes,
                   count);
    }
  }
}

absl::Status RankState::PutValues(const GroupState& g, int64_t flat, const float* values, int64_t count, char* work) {
  const ElementRange weights = g.Weights(runtime_.rank()),
                     owned = Intersect(g.Owned(runtime_.rank()), {flat, flat + count});
  const Tensor& weight = g.weights();
  if (weight.dtype == DType::kFloat32) {
    SHALE_RETURN_IF_ERROR(Write(weight, flat - weights.begin, values, count));
  } else {
    std::transform(values, values + count, reinterpret_cast<BFloat16*>(work), RoundMaster);
    SHALE_RETURN_IF_ERROR(Write(weight, flat - weights.begin, work, count));
  }
  if (owned.begin == owned.end) return absl::OkStatus();
  const float* mine = values + (owned.begin - flat);
  const int64_t at = owned.begin - g.Owned(runtime_.rank()).begin, size = owned.end - owned.begin;
  if (g.master.present()) SHALE_RETURN_IF_ERROR(Write(g.master, at, mine, size));
  if (!g.low.present()) return absl::OkStatus();
  std::transform(mine, mine + size, reinterpret_cast<int16_t*>(work),
                 [](float value) { return MasterLowBits(value, RoundMaster(value)); });
  return Write(g.low, at, work, size);
}

// The bits of a float are those of its weight, shifted up, plus the sign-extended low bits (JoinMaster). The halves are
// added, so they may come in any order.
absl::Status RankState::AddHalf(const Tensor& to, int64_t element, SavedPart half, const uint16_t* bits, int64_t count,
                                char* work) {
  for (int64_t begin = 0; begin < count; begin += kWorkFloats) {
    const int64_t size = std::min(kWorkFloats, count - begin);
    SHALE_RETURN_IF_ERROR(Read(to, element + begin, work, size));
    auto* words = reinterpret_cast<uint32_t*>(work);
    for (int64_t i = 0; i < size; ++i) {
      const uint16_t b = bits[begin + i];
      words[i] += half == SavedPart::kHigh ? static_cast<uint32_t>(b) << 16
                                           : static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(b)));
    }
    SHALE_RETURN_IF_ERROR(Write(to, element + begin, work, size));
  }
  return absl::OkStatus();
}

absl::Status RankState::PutHalf(const GroupState& g, int64_t flat, SavedPart half, const uint16_t* bits, int64_t count,
                                char* work) {
  const ElementRange owned = Intersect(g.Owned(runtime_.rank()), {flat, flat + count});
  const Tensor& weight = g.weights();
  if (weight.dtype == DType::kFloat32) {
    SHALE_RETURN_IF_ERROR(AddHalf(weight, flat - g.Weights(runtime_.rank()).begin, half, bits, count, work));
  } else if (half == SavedPart::kHigh) {
    SHALE_RETURN_IF_ERROR(Write(weight, flat - g.Weights(runtime_.rank()).begin, bits, count));
  }
  if (owned.begin == owned.end) return absl::OkStatus();
  const int64_t at = owned.begin - g.Owned(runtime_.rank()).begin, size = owned.end - owned.begin;
  bits += owned.begin - flat;
  if (g.master.present()) SHALE_RETURN_IF_ERROR(AddHalf(g.master, at, half, bits, size, work));
  if (g.low.present() && half == SavedPart::kLow) return Write(g.low, at, bits, size);
  return absl::OkStatus();
}

absl::Status RankState::Fill(ReadValues read, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kReadStagingBytes);
  MakeResident(/*states=*/false);
  const auto values = absl::MakeSpan(reinterpret_cast<float*>(staging.data()), kCheckpointChunkBytes / 4);
  char* const work = staging.data() + kCheckpointChunkBytes;
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    const Parameter& parameter = model_.parameters[id];
    const GroupState& g = state_.groups[parameter.group];
    const int64_t offset = g.layout.Find(parameter.name)->offset_elements;
    const ElementRange wanted = OfParameter(static_cast<ParameterId>(id), g.Weights(runtime_.rank()));
    for (int64_t begin = wanted.begin; begin < wanted.end; begin += std::ssize(values)) {
      const auto part = values.subspan(0, wanted.end - begin);
      SHALE_RETURN_IF_ERROR(read(parameter, begin, part));
      SHALE_RETURN_IF_ERROR(PutValues(g, offset + begin, part.data(), std::ssize(part), work));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RankState::ReadUpdateCount() const {
  int64_t count = 0;
  SHALE_RETURN_IF_ERROR(runtime_.Read(Address(state_.update_count, 0), &count, sizeof(count)));
  return count;
}

}  // namespace shale
