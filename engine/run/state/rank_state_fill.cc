// The part of RankState that fills in weights. The threads of a rank divide the elements of a round; what each computes
// depends on its elements alone, so neither threads nor rounds change a bit.
//
// The part of RankState that handles weights in 4 bits (kernels/nf4.h).

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/storage.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/fill_loops.h"
#include "engine/run/state/filling.h"
#include "engine/run/state/rank_state.h"
#include "kernels/check.h"
#include "kernels/cpu/team.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"

namespace shale {
namespace {

// The fewest elements for which it is worth to wake a thread, which takes some microseconds.
constexpr int64_t kLeastElements = int64_t{1} << 14;
// The most elements that a thread reads at once. More would not stay in its cache; fewer would make it slower to read
// from the files of a Hugging Face folder whose matrices are transposed.
constexpr int64_t kMostElements = int64_t{1} << 18;

// Returns where elements of a part begin in a row that begins with weight 0, for weight `weight` of the row.
int64_t OffsetInRow(const Nf4Row& row, SavedPart part, int64_t weight) {
  const int64_t element = weight / BlockOf(part, {}) * BytesPerElement(part, {});
  switch (part) {
    case SavedPart::kNf4Absmax: return row.absmax_begin() + element;
    case SavedPart::kNf4Scales: return row.scales_begin() + element;
    case SavedPart::kNf4Means: return row.means_begin() + element;
    default: return row.codes_begin() + element;
  }
}

constexpr int64_t kFloatBytes = sizeof(float);
// The most elements of a round: enough for many threads, and not so many that rounds have many pieces of rows.
constexpr int64_t kMostNf4Elements = 256 * kNf4GroupWeights;

}  // namespace

std::vector<std::vector<ElementRange>> RankState::SavedOfFrozen() const {
  std::vector<std::vector<ElementRange>> saved(model_.parameters.size());
  for (size_t group = 0; group < state_.groups.size(); ++group) {
    if (!state_.groups[group].frozen) continue;
    for (const ShardLayout::Piece& piece : state_.groups[group].placement.Saved(runtime_.rank())) {
      saved[model_.groups[group].parameters[piece.parameter]].push_back(piece.range);
    }
  }
  return saved;
}

absl::Status RankState::Fill(ReadValues read_values, const FillOptions& options, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kLeastFillStagingBytes && options.threads >= 1);
  MakeResident(/*states=*/false);
  cpu::Team team(options.threads);
  team.Start().IgnoreError();  // If the system refuses threads, this one does all the work.
  StagedFill out(runtime_, staging);
  std::atomic<uint64_t> digest = 0;
  const std::vector<std::vector<ElementRange>> digested = SavedOfFrozen();
  for (size_t id = 0; id < model_.parameters.size(); ++id) {
    const Parameter& parameter = model_.parameters[id];
    const GroupState& g = state_.groups[parameter.group];
    if (options.frozen_only && !g.frozen) continue;
    const auto read = [&](const Parameter& p, int64_t begin, absl::Span<float> values) {
      SHALE_RETURN_IF_ERROR(read_values(p, begin, values));
      if (options.digest_of_frozen == nullptr) return absl::OkStatus();
      ValuesDigest part;
      for (const ElementRange& range : digested[id]) {
        const ElementRange common = Intersect(range, {begin, begin + std::ssize(values)});
        if (common.begin >= common.end) continue;
        part.Add(p.name, common.begin, values.subspan(common.begin - begin, common.end - common.begin));
      }
      digest.fetch_add(part.value(), std::memory_order_relaxed);
      return absl::OkStatus();
    };
    const ElementRange wanted = OfParameter(static_cast<ParameterId>(id), Weights(g));
    if (wanted.begin == wanted.end) continue;
    // Of a parameter in 4 bits, all is read.
    SHALE_RETURN_IF_ERROR(RowOf(g.storage).quantized ? FillNf4(parameter, read, team, out)
                                                     : FillValues(parameter, wanted, read, team, out));
  }
  SHALE_RETURN_IF_ERROR(out.Finish());
  for (const GroupState& g : state_.groups) SHALE_RETURN_IF_ERROR(CopyToHostWeight(g));
  if (options.digest_of_frozen != nullptr) *options.digest_of_frozen = digest;
  return options.frozen_only ? absl::OkStatus() : StoreLossScale({});
}

absl::Status RankState::FillValues(const Parameter& parameter, ElementRange wanted, ReadValues read, cpu::Team& team,
                                   StagedFill& out) {
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements;
  const Tensor& weight = g.weights();
  const bool wide = weight.dtype == DType::kFloat32;
  // Values, weights in bf16, masters in fp32 (or low bits in 16): at most these pieces and bytes of an element.
  constexpr int64_t kPieces = 3, kElementBytes = 4 + 2 + 4;
  const int64_t most = out.RoundBytes(kPieces) / kElementBytes;
  for (int64_t begin = wanted.begin; begin < wanted.end;) {
    const int64_t count = std::min(most, wanted.end - begin), flat = offset + begin;
    const ElementRange owned = Intersect(Owned(g), {flat, flat + count});
    const int64_t at_owned = owned.begin - Owned(g).begin, own_count = owned.end - owned.begin;
    const auto place = [&](const Tensor& tensor, int64_t element, int64_t elements) {
      return elements == 0 ? nullptr : out.Place(Address(tensor, element), elements * SizeOf(tensor.dtype));
    };
    std::byte* const weights = place(weight, flat - Weights(g).begin, count);
    std::byte* const masters = g.master.present() ? place(g.master, at_owned, own_count) : nullptr;
    std::byte* const low = g.low.present() ? place(g.low, at_owned, own_count) : nullptr;
    // Values are read to where they stay, if all of them stay.
    const bool all_masters = masters != nullptr && own_count == count;
    auto* const values = reinterpret_cast<float*>(wide ? weights : all_masters ? masters : out.Scratch(count * 4));
    const int64_t step = std::clamp(CeilDivide(count, team.threads()), kLeastElements, kMostElements);
    SHALE_RETURN_IF_ERROR(RunParts(team, CeilDivide(count, step), [&](int64_t part) -> absl::Status {
      const int64_t from = part * step, size = std::min(step, count - from);
      SHALE_RETURN_IF_ERROR(read(parameter, begin + from, absl::MakeSpan(values + from, size)));
      if (wide) return absl::OkStatus();
      RoundMasters(values + from, size, weight.dtype, weights + from * SizeOf(weight.dtype));
      const ElementRange mine = Intersect(owned, {flat + from, flat + from + size});
      const float* const own_values = values + (mine.begin - flat);
      const int64_t at = mine.begin - owned.begin, own_size = mine.end - mine.begin;
      if (masters != nullptr && !all_masters) {
        std::copy_n(own_values, own_size, reinterpret_cast<float*>(masters) + at);
      }
      if (low != nullptr) TakeLowBits(own_values, own_size, reinterpret_cast<int16_t*>(low) + at);
      return absl::OkStatus();
    }));
    SHALE_RETURN_IF_ERROR(out.Send());
    begin += count;
  }
  return absl::OkStatus();
}

std::byte* RankState::Nf4Address(const GroupState& g, SavedPart part, int64_t flat) const {
  const Nf4Row row{g.layout().shard_elements()};
  const int64_t held = flat - Weights(g).begin;
  return Address(g.weights(), held / row.weights * row.bytes() + OffsetInRow(row, part, held % row.weights));
}

std::vector<ElementRange> RankState::HeldNf4(const GroupState& g, ElementRange of_group) const {
  const int64_t row = g.layout().shard_elements();
  const ElementRange held = Intersect(Weights(g), of_group);
  std::vector<ElementRange> pieces;
  for (int64_t begin = held.begin, end; begin < held.end; begin = end) {
    end = std::min(RoundDown(begin, row) + row, held.end);
    pieces.push_back({begin, end});
  }
  return pieces;
}

absl::Status RankState::FillNf4(const Parameter& parameter, ReadValues read, cpu::Team& team, StagedFill& out) {
  std::vector<float> absmax(CeilDivide(parameter.elements(), kNf4BlockWeights));
  SHALE_RETURN_IF_ERROR(FillNf4Codes(parameter, read, team, out, absl::MakeSpan(absmax)));
  return FillNf4Scales(parameter, absmax, team, out);
}

absl::Status RankState::FillNf4Codes(const Parameter& parameter, ReadValues read, cpu::Team& team, StagedFill& out,
                                     absl::Span<float> absmax) {
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements, elements = parameter.elements();
  // Places take half a byte of an element, and less than a row has another piece.
  const int64_t pieces = 2 + kMostNf4Elements / g.layout().shard_elements();
  const int64_t most = std::min(kMostNf4Elements, out.RoundBytes(pieces + 1) / 9 * 2);
  const int64_t round = RoundDown(most, kNf4GroupWeights);
  SHALE_CHECK(round > 0);
  for (int64_t begin = 0; begin < elements; begin += round) {
    const int64_t count = std::min(round, elements - begin), flat = offset + begin;
    auto* const values = reinterpret_cast<float*>(out.Scratch(count * kFloatBytes));
    struct Codes {
      ElementRange range;  // Numbered within the group.
      uint8_t* codes = nullptr;
    };
    std::vector<Codes> held;
    for (const ElementRange& piece : HeldNf4(g, {flat, flat + count})) {
      std::byte* const to = Nf4Address(g, SavedPart::kNf4Codes, piece.begin);
      held.push_back({piece, reinterpret_cast<uint8_t*>(out.Place(to, CeilDivide(piece.end - piece.begin, 2)))});
    }
    // Quantizes up to a group of weights, which lies in one piece or in none.
    const auto quantize = [&](absl::Span<const float> weights, int64_t first, uint8_t* codes) -> absl::Status {
      for (int64_t i = 0; i < std::ssize(weights); i += kNf4BlockWeights) {
        const absl::Span<const float> block = weights.subspan(i, kNf4BlockWeights);
        float& of_block = absmax[(first + i) / kNf4BlockWeights];
        of_block = codes != nullptr ? QuantizeNf4Block(block, codes + i / 2) : AbsmaxOfNf4Block(block);
        if (std::isfinite(of_block)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(parameter.name, " has a weight that is not finite among elements ", first + i, " to ",
                         std::min(first + i + kNf4BlockWeights, elements),
                         ", so it cannot be stored in NF4; mend the weights, or use optimizer.frozen_weights BF16"));
      }
      return absl::OkStatus();
    };
    const int64_t step = RoundUp(CeilDivide(count, team.threads()), kNf4GroupWeights);
    SHALE_RETURN_IF_ERROR(RunParts(team, CeilDivide(count, step), [&](int64_t part) -> absl::Status {
      const int64_t from = part * step, size = std::min(step, count - from);
      const auto of_part = absl::MakeSpan(values + from, size);
      SHALE_RETURN_IF_ERROR(read(parameter, begin + from, of_part));
      for (int64_t first = 0; first < size; first += kNf4GroupWeights) {
        const int64_t at = flat + from + first;
        const auto piece = std::find_if(held.begin(), held.end(),
                                        [&](const Codes& c) { return at >= c.range.begin && at < c.range.end; });
        uint8_t* const codes = piece == held.end() ? nullptr : piece->codes + (at - piece->range.begin) / 2;
        SHALE_RETURN_IF_ERROR(quantize(of_part.subspan(first, kNf4GroupWeights), begin + from + first, codes));
      }
      return absl::OkStatus();
    }));
    SHALE_RETURN_IF_ERROR(out.Send());
  }
  return absl::OkStatus();
}

absl::Status RankState::FillNf4Scales(const Parameter& parameter, absl::Span<const float> absmax, cpu::Team& team,
                                      StagedFill& out) {
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements;
  const float mean = MeanOfAbsmax(absmax);
  constexpr int64_t kGroupBytes = kNf4GroupBlocks + 2 * sizeof(float), kPieces = 3;
  constexpr int64_t kPartGroups = 64;  // About 0.1 ms of work.
  const int64_t round = out.RoundBytes(kPieces) / kGroupBytes * kNf4GroupWeights;
  for (const ElementRange& piece : HeldNf4(g, {offset, offset + parameter.elements()})) {
    for (int64_t begin = piece.begin; begin < piece.end; begin += round) {
      const int64_t size = std::min(round, piece.end - begin);
      const int64_t blocks = CeilDivide(size, kNf4BlockWeights), groups = CeilDivide(size, kNf4GroupWeights);
      const auto of_round = absmax.subspan((begin - offset) / kNf4BlockWeights, blocks);
      const auto place = [&](SavedPart part, int64_t bytes) { return out.Place(Nf4Address(g, part, begin), bytes); };
      auto* const codes = reinterpret_cast<uint8_t*>(place(SavedPart::kNf4Absmax, blocks));
      auto* const scales = reinterpret_cast<float*>(place(SavedPart::kNf4Scales, groups * kFloatBytes));
      auto* const means = reinterpret_cast<float*>(place(SavedPart::kNf4Means, groups * kFloatBytes));
      SHALE_RETURN_IF_ERROR(RunParts(team, CeilDivide(groups, kPartGroups), [&](int64_t part) {
        for (int64_t i = part * kPartGroups; i < std::min(groups, (part + 1) * kPartGroups); ++i) {
          const int64_t block = i * kNf4GroupBlocks;
          scales[i] = QuantizeAbsmax(of_round.subspan(block, kNf4GroupBlocks), mean, codes + block);
          means[i] = mean;
        }
        return absl::OkStatus();
      }));
      SHALE_RETURN_IF_ERROR(out.Send());
    }
  }
  return absl::OkStatus();
}

absl::Status RankState::WriteNf4(const Parameter& parameter, int64_t begin, absl::Span<const float> values) {
  if (begin != 0 || std::ssize(values) != parameter.elements()) {
    return absl::FailedPreconditionError(absl::StrCat(
        parameter.name,
        " is stored in NF4 (optimizer.frozen_weights), in which all weights of a parameter "
        "share a mean: set all of its ",
        parameter.elements(), " elements at once; found elements ", begin, " to ", begin + std::ssize(values)));
  }
  const auto read = [&](const Parameter&, int64_t first, absl::Span<float> out) {
    std::copy_n(values.begin() + first, out.size(), out.begin());
    return absl::OkStatus();
  };
  std::vector<char> staging(kLeastFillStagingBytes);
  cpu::Team team(1);
  StagedFill out(runtime_, absl::MakeSpan(staging));
  SHALE_RETURN_IF_ERROR(FillNf4(parameter, read, team, out));
  return out.Finish();
}

absl::Status RankState::PutNf4(const GroupState& g, int64_t offset, const ShardPiece& piece, const char* bytes) {
  const int64_t block = BlockOf(piece.part, {}), row = g.layout().shard_elements();
  for (int64_t element = piece.range.begin; element < piece.range.end;) {
    // Rows begin at whole groups, so no element of any part belongs to two.
    const int64_t flat = offset + element * block, end_of_row = RoundDown(flat, row) + row;
    const int64_t count = std::min(piece.range.end - element, (end_of_row - flat) / block);
    const int64_t size = count * piece.element_bytes;
    SHALE_RETURN_IF_ERROR(runtime_.Write(Nf4Address(g, piece.part, flat), bytes, size));
    bytes += size;
    element += count;
  }
  return absl::OkStatus();
}

absl::Status RankState::ReadNf4(const GroupState& g, int64_t flat, absl::Span<float> out) const {
  std::vector<float> weights(kNf4GroupWeights);
  uint8_t codes[kNf4GroupWeights / 2], absmax[kNf4GroupBlocks];
  float scale = 0, mean = 0;
  const int64_t end = flat + std::ssize(out);
  for (int64_t group = RoundDown(flat, kNf4GroupWeights); group < end; group += kNf4GroupWeights) {
    SHALE_RETURN_IF_ERROR(runtime_.Read(Nf4Address(g, SavedPart::kNf4Codes, group), codes, sizeof(codes)));
    SHALE_RETURN_IF_ERROR(runtime_.Read(Nf4Address(g, SavedPart::kNf4Absmax, group), absmax, sizeof(absmax)));
    SHALE_RETURN_IF_ERROR(runtime_.Read(Nf4Address(g, SavedPart::kNf4Scales, group), &scale, sizeof(scale)));
    SHALE_RETURN_IF_ERROR(runtime_.Read(Nf4Address(g, SavedPart::kNf4Means, group), &mean, sizeof(mean)));
    DequantizeNf4(codes, absmax, scale, mean, absl::MakeSpan(weights));
    const int64_t from = std::max(flat, group), to = std::min(end, group + kNf4GroupWeights);
    std::copy(weights.begin() + (from - group), weights.begin() + (to - group), out.begin() + (from - flat));
  }
  return absl::OkStatus();
}

}  // namespace shale
