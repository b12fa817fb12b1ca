// The part of RankState that handles weights in 4 bits (kernels/nf4.h).
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/state/rank_state.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"

namespace shale {
namespace {

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

}  // namespace

std::byte* RankState::Nf4Address(const GroupState& g, SavedPart part, int64_t flat) const {
  const Nf4Row row{g.layout().shard_elements()};
  const int64_t held = flat - Weights(g).begin;
  return Address(g.weights(), held / row.weights * row.bytes() + OffsetInRow(row, part, held % row.weights));
}

absl::Status RankState::FillNf4(const Parameter& parameter, ReadValues read, absl::Span<float> buffer) {
  const GroupState& g = state_.groups[parameter.group];
  const int64_t offset = g.layout().Find(parameter.name)->offset_elements;
  const int64_t elements = parameter.elements(), step = RoundDown(std::ssize(buffer), kNf4GroupWeights);
  SHALE_CHECK(step > 0);
  const ElementRange held = Weights(g);
  const auto holds = [&](int64_t flat) { return flat >= held.begin && flat < held.end; };
  std::vector<float> absmax;
  absmax.reserve(CeilDivide(elements, kNf4BlockWeights));
  uint8_t codes[kNf4GroupWeights / 2] = {};
  for (int64_t begin = 0; begin < elements; begin += step) {
    const absl::Span<float> part = buffer.subspan(0, std::min(step, elements - begin));
    SHALE_RETURN_IF_ERROR(read(parameter, begin, part));
    for (int64_t first = 0; first < std::ssize(part); first += kNf4GroupWeights) {
      const absl::Span<const float> group = part.subspan(first, kNf4GroupWeights);
      for (int64_t i = 0; i < std::ssize(group); i += kNf4BlockWeights) {
        absmax.push_back(QuantizeNf4Block(group.subspan(i, kNf4BlockWeights), codes + i / 2));
        if (std::isfinite(absmax.back())) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(parameter.name, " has a weight that is not finite among elements ", begin + first + i, " to ",
                         std::min(begin + first + i + kNf4BlockWeights, elements),
                         ", so it cannot be stored in NF4; mend the weights, or use optimizer.frozen_weights BF16"));
      }
      const int64_t flat = offset + begin + first;
      if (!holds(flat)) continue;
      SHALE_RETURN_IF_ERROR(
          runtime_.Write(Nf4Address(g, SavedPart::kNf4Codes, flat), codes, CeilDivide(std::ssize(group), int64_t{2})));
    }
  }
  const float mean = MeanOfAbsmax(absmax);
  for (int64_t first = 0; first < std::ssize(absmax); first += kNf4GroupBlocks) {
    const int64_t flat = offset + first * kNf4BlockWeights;
    if (!holds(flat)) continue;
    const auto group = absl::MakeConstSpan(absmax).subspan(first, kNf4GroupBlocks);
    const float scale = QuantizeAbsmax(group, mean, codes);
    SHALE_RETURN_IF_ERROR(runtime_.Write(Nf4Address(g, SavedPart::kNf4Absmax, flat), codes, std::ssize(group)));
    SHALE_RETURN_IF_ERROR(runtime_.Write(Nf4Address(g, SavedPart::kNf4Scales, flat), &scale, sizeof(scale)));
    SHALE_RETURN_IF_ERROR(runtime_.Write(Nf4Address(g, SavedPart::kNf4Means, flat), &mean, sizeof(mean)));
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
  std::vector<float> buffer(kNf4GroupWeights);
  const auto read = [&](const Parameter&, int64_t first, absl::Span<float> out) {
    std::copy_n(values.begin() + first, out.size(), out.begin());
    return absl::OkStatus();
  };
  return FillNf4(parameter, read, absl::MakeSpan(buffer));
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
