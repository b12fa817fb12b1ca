#include "engine/train/rank_state.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/check.h"

namespace shale {
namespace {

const Tensor& PartOf(const SavedTensors& tensors, SavedPart part) {
  switch (part) {
    case SavedPart::kValue: return tensors.value;
    case SavedPart::kHigh: return tensors.high;
    case SavedPart::kLow: return tensors.low;
    case SavedPart::kFirstMoment: return tensors.m;
    case SavedPart::kSecondMoment: return tensors.v;
  }
  return tensors.value;
}

}  // namespace

RankState::RankState(const ModelGraph& model, const JobState& state, const MemoryPlan& plan, RankRuntime& runtime)
    : model_(model), state_(state), plan_(plan), runtime_(runtime) {}

template <class T>
T* RankState::Address(const Tensor& tensor, int64_t element) const {
  SHALE_CHECK(sizeof(T) == SizeOf(tensor.dtype));
  return reinterpret_cast<T*>(runtime_.arena().base() + plan_.addresses[tensor.where.symbol] +
                              tensor.where.offset_bytes + runtime_.rank() * tensor.where.rank_stride_bytes) +
         element;
}

ElementRange RankState::Owned(const GroupState& g) const {
  const bool all = g.m.elements() == g.layout.padded_elements();
  return all ? ElementRange{0, g.layout.padded_elements()} : g.layout.ShardRange(runtime_.rank());
}

ElementRange RankState::Weights(const GroupState& g) const {
  return g.full_weight.present() ? ElementRange{0, g.layout.padded_elements()} : Owned(g);
}

ElementRange RankState::OfParameter(ParameterId id, ElementRange of_group) const {
  const Parameter& parameter = model_.parameters[id];
  const ElementRange here = state_.groups[parameter.group].layout.Find(parameter.name)->range();
  const ElementRange common = Intersect(of_group, here);
  return {common.begin - here.begin, common.end - here.begin};
}

std::vector<PieceSource> RankState::Pieces(Source source) const {
  std::vector<PieceSource> pieces;
  for (SavedPart part : {SavedPart::kFirstMoment, SavedPart::kSecondMoment, SavedPart::kValue, SavedPart::kHigh,
                         SavedPart::kLow}) {
    for (size_t group = 0; group < state_.groups.size(); ++group) {
      const GroupState& g = state_.groups[group];
      const Tensor& tensor = PartOf(source == Source::kSnapshot ? g.snapshot : g.saved, part);
      if (!tensor.present()) continue;
      for (const ShardLayout::Piece& piece : g.layout.ParameterPieces(runtime_.rank())) {
        const std::byte* data = BytesPerElement(part) == 4
                                    ? reinterpret_cast<std::byte*>(Address<float>(tensor, piece.slice_offset))
                                    : reinterpret_cast<std::byte*>(Address<int16_t>(tensor, piece.slice_offset));
        pieces.push_back({model_.groups[group].parameters[piece.parameter], part, piece.range, data});
      }
    }
  }
  return pieces;
}

// Whether values in fp32 have to be put together from halves, which come one after the other.
bool RankState::JoinsFloats(const GroupState& g) const {
  return g.master.present() || g.own_weight.dtype == DType::kFloat32;
}

void RankState::ZeroValues(const GroupState& g) {
  const auto zero = [&](const Tensor& tensor, ElementRange range) {
    if (tensor.present()) std::fill_n(Address<float>(tensor, 0), range.end - range.begin, 0.0f);
  };
  zero(g.master, Owned(g));
  if (g.own_weight.dtype == DType::kFloat32) zero(g.full_weight.present() ? g.full_weight : g.own_weight, Weights(g));
}

absl::Status RankState::Restore(const CheckpointReader& checkpoint, bool values_only, absl::Span<char> staging) {
  SHALE_CHECK(checkpoint.manifest().parameters.size() == model_.parameters.size());
  if (checkpoint.manifest().values == SavedValues::kSplit) {
    for (const GroupState& g : state_.groups) {
      if (JoinsFloats(g)) ZeroValues(g);
    }
  }
  const auto wanted = [&](const ShardPiece& piece) -> ElementRange {
    const GroupState& g = state_.groups[model_.parameters[piece.parameter].group];
    switch (piece.part) {
      case SavedPart::kFirstMoment:
      case SavedPart::kSecondMoment: return values_only ? ElementRange{} : OfParameter(piece.parameter, Owned(g));
      // bf16 weights are the upper half: only masters, and weights in fp32, want the lower one.
      case SavedPart::kLow:
        return OfParameter(piece.parameter, g.own_weight.dtype == DType::kFloat32 ? Weights(g) : Owned(g));
      case SavedPart::kValue:
      case SavedPart::kHigh: return OfParameter(piece.parameter, Weights(g));
    }
    return {};
  };
  const auto sink = [&](const ShardPiece& piece, const char* bytes) {
    Put(piece, bytes);
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(checkpoint.Stream(wanted, sink, staging));
  set_update_count(checkpoint.manifest().update_count);
  return absl::OkStatus();
}

void RankState::Put(const ShardPiece& piece, const char* bytes) {
  const Parameter& parameter = model_.parameters[piece.parameter];
  const GroupState& g = state_.groups[parameter.group];
  const int64_t flat = g.layout.Find(parameter.name)->offset_elements + piece.range.begin;
  const int64_t count = piece.range.end - piece.range.begin;
  switch (piece.part) {
    case SavedPart::kValue: return PutValues(g, flat, reinterpret_cast<const float*>(bytes), count);
    case SavedPart::kHigh:
    case SavedPart::kLow: return PutHalf(g, flat, piece.part, bytes, count);
    case SavedPart::kFirstMoment:
    case SavedPart::kSecondMoment: {
      const Tensor& moment = piece.part == SavedPart::kFirstMoment ? g.m : g.v;
      std::memcpy(Address<float>(moment, flat - Owned(g).begin), bytes, count * sizeof(float));
    }
  }
}

void RankState::PutValues(const GroupState& g, int64_t flat, const float* values, int64_t count) {
  const ElementRange weights = Weights(g), owned = Intersect(Owned(g), {flat, flat + count});
  const Tensor& weight = g.full_weight.present() ? g.full_weight : g.own_weight;
  if (weight.dtype == DType::kFloat32) {
    std::memcpy(Address<float>(weight, flat - weights.begin), values, count * sizeof(float));
  } else {
    std::transform(values, values + count, Address<BFloat16>(weight, flat - weights.begin), RoundMaster);
  }
  if (owned.begin == owned.end) return;
  const float* mine = values + (owned.begin - flat);
  const int64_t at = owned.begin - Owned(g).begin, size = owned.end - owned.begin;
  if (g.master.present()) std::memcpy(Address<float>(g.master, at), mine, size * sizeof(float));
  if (g.low.present()) {
    std::transform(mine, mine + size, Address<int16_t>(g.low, at),
                   [](float value) { return MasterLowBits(value, RoundMaster(value)); });
  }
}

void RankState::PutHalf(const GroupState& g, int64_t flat, SavedPart half, const char* bytes, int64_t count) {
  const auto* bits = reinterpret_cast<const uint16_t*>(bytes);
  // The bits of a float are those of its weight, shifted up, plus the low bits with their sign (JoinMaster): the halves
  // may come in any order.
  const auto add = [&](float* to, ElementRange range) {
    for (int64_t i = range.begin - flat; i < range.end - flat; ++i, ++to) {
      const uint32_t part = half == SavedPart::kHigh
                                ? static_cast<uint32_t>(bits[i]) << 16
                                : static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(bits[i])));
      *to = std::bit_cast<float>(std::bit_cast<uint32_t>(*to) + part);
    }
  };
  const ElementRange all = {flat, flat + count}, owned = Intersect(Owned(g), all);
  const Tensor& weight = g.full_weight.present() ? g.full_weight : g.own_weight;
  if (weight.dtype == DType::kFloat32) {
    add(Address<float>(weight, flat - Weights(g).begin), all);
  } else if (half == SavedPart::kHigh) {
    std::memcpy(Address<uint16_t>(weight, flat - Weights(g).begin), bits, count * sizeof(uint16_t));
  }
  if (owned.begin == owned.end) return;
  if (g.master.present()) add(Address<float>(g.master, owned.begin - Owned(g).begin), owned);
  if (g.low.present() && half == SavedPart::kLow) {
    std::memcpy(Address<uint16_t>(g.low, owned.begin - Owned(g).begin), bits + (owned.begin - flat),
                (owned.end - owned.begin) * sizeof(uint16_t));
  }
}

absl::Status RankState::Fill(ReadValues read, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kCheckpointChunkBytes);
  const auto values = absl::MakeSpan(reinterpret_cast<float*>(staging.data()), kCheckpointChunkBytes / 4);
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    const Parameter& parameter = model_.parameters[id];
    const GroupState& g = state_.groups[parameter.group];
    const int64_t offset = g.layout.Find(parameter.name)->offset_elements;
    const ElementRange wanted = OfParameter(static_cast<ParameterId>(id), Weights(g));
    for (int64_t begin = wanted.begin; begin < wanted.end; begin += std::ssize(values)) {
      const auto part = values.subspan(0, wanted.end - begin);
      SHALE_RETURN_IF_ERROR(read(parameter, begin, part));
      PutValues(g, offset + begin, part.data(), std::ssize(part));
    }
  }
  return absl::OkStatus();
}

int64_t RankState::update_count() const { return *Address<int64_t>(state_.update_count, 0); }
void RankState::set_update_count(int64_t count) { *Address<int64_t>(state_.update_count, 0) = count; }

}  // namespace shale
