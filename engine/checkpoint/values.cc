#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/text/elements.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"

namespace shale {
namespace {

constexpr int kCachedChunks = 4;

}  // namespace

CheckpointValues::CheckpointValues(const CheckpointReader& reader, ReadBase base)
    : reader_(reader),
      base_(std::move(base)),
      parts_(static_cast<int64_t>(StatePart(std::ssize(reader.manifest().states))) - 1 + kNf4Parts),
      places_(reader.manifest().parameters.size() * parts_),
      cache_(kCachedChunks) {
  for (const ShardHeader& shard : reader.shards()) {
    for (const ShardPiece& piece : shard.pieces) {
      Places(piece.part, piece.parameter).push_back({piece.range, shard.rank, piece.offset_bytes});
    }
  }
  for (std::vector<Place>& places : places_) {
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return a.range.begin < b.range.begin; });
  }
}

std::vector<CheckpointValues::Place>& CheckpointValues::Places(SavedPart part, int64_t parameter) {
  // Parts in 4 bits come last.
  const int64_t place = IsNf4(part)
                            ? static_cast<int64_t>(part) - static_cast<int64_t>(SavedPart::kNf4Means) - 1 + parts_
                            : static_cast<int64_t>(part) - 1;
  return places_[parameter * parts_ + place];
}

absl::StatusOr<const char*> CheckpointValues::Fetch(int64_t rank, int64_t index) {
  Chunk* oldest = &cache_[0];
  for (Chunk& chunk : cache_) {
    if (chunk.rank == rank && chunk.index == index) {
      chunk.used = ++clock_;
      return chunk.bytes.get();
    }
    if (chunk.used < oldest->used) oldest = &chunk;
  }
  if (oldest->bytes == nullptr) oldest->bytes = std::make_unique<char[]>(kCheckpointChunkBytes);
  oldest->rank = -1;
  SHALE_RETURN_IF_ERROR(
      reader_.ReadChunk(rank, index, absl::MakeSpan(oldest->bytes.get(), kCheckpointChunkBytes)).status());
  oldest->rank = rank;
  oldest->index = index;
  oldest->used = ++clock_;
  return oldest->bytes.get();
}

absl::Status CheckpointValues::ReadPart(SavedPart part, int64_t parameter, int64_t begin, int64_t elements,
                                        absl::FunctionRef<void(int64_t, const char*, int64_t)> sink) {
  const std::vector<Place>& places = Places(part, parameter);
  const int64_t element_bytes = BytesPerElement(part, reader_.manifest().states), end = begin + elements;
  auto place = std::partition_point(places.begin(), places.end(), [&](const Place& p) { return p.range.end <= begin; });
  for (int64_t at = begin; at < end;) {
    SHALE_CHECK(place != places.end() && place->range.begin <= at);  // The reader checked that nothing is missing.
    const int64_t offset = place->offset_bytes + (at - place->range.begin) * element_bytes;
    const int64_t chunk = offset / kCheckpointChunkBytes, in_chunk = offset % kCheckpointChunkBytes;
    SHALE_ASSIGN_OR_RETURN(const char* bytes, Fetch(place->rank, chunk));
    const int64_t count =
        std::min({end - at, place->range.end - at, (kCheckpointChunkBytes - in_chunk) / element_bytes});
    sink(at - begin, bytes + in_chunk, count);
    at += count;
    if (at == place->range.end) ++place;
  }
  return absl::OkStatus();
}

absl::Status CheckpointValues::ReadNf4(int64_t parameter, int64_t begin, absl::Span<float> out) {
  const int64_t elements = reader_.manifest().parameters[parameter].elements(), end = begin + std::ssize(out);
  std::vector<float> weights(kNf4GroupWeights);
  uint8_t codes[kNf4GroupWeights / 2], absmax[kNf4GroupBlocks];
  float scale = 0, mean = 0;
  for (int64_t first = RoundDown(begin, kNf4GroupWeights); first < end; first += kNf4GroupWeights) {
    const int64_t count = std::min(kNf4GroupWeights, elements - first);
    const auto read = [&](SavedPart part, void* to) {
      const int64_t block = BlockOf(part, reader_.manifest().states);
      const int64_t bytes = BytesPerElement(part, reader_.manifest().states);
      return ReadPart(part, parameter, first / block, CeilDivide(count, block),
                      [&](int64_t at, const char* from, int64_t n) {
                        std::memcpy(static_cast<char*>(to) + at * bytes, from, n * bytes);
                      });
    };
    SHALE_RETURN_IF_ERROR(read(SavedPart::kNf4Codes, codes));
    SHALE_RETURN_IF_ERROR(read(SavedPart::kNf4Absmax, absmax));
    SHALE_RETURN_IF_ERROR(read(SavedPart::kNf4Scales, &scale));
    SHALE_RETURN_IF_ERROR(read(SavedPart::kNf4Means, &mean));
    DequantizeNf4(codes, absmax, scale, mean, absl::MakeSpan(weights.data(), count));
    const int64_t from = std::max(begin, first), to = std::min(end, first + count);
    std::copy(weights.begin() + (from - first), weights.begin() + (to - first), out.begin() + (from - begin));
  }
  return absl::OkStatus();
}

absl::Status CheckpointValues::ReadFromBase(const SavedParameter& parameter, int64_t begin, absl::Span<float> out) {
  const Manifest& manifest = reader_.manifest();
  if (base_ == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(reader_.folder(), " holds adapters alone: ", parameter.name,
                                                      " is in their base, ", manifest.base->folder));
  }
  if (!of_base_ || of_base_->parameter() != parameter.name) {
    of_base_.emplace(base_, manifest.ValuesOf(parameter), parameter);
  }
  return of_base_->Read(begin, out);
}

absl::Status CheckpointValues::Read(SavedPart part, absl::string_view parameter, int64_t begin, absl::Span<float> out) {
  const std::vector<SavedState>& states = reader_.manifest().states;
  SHALE_CHECK(part == SavedPart::kValue || (StateOf(part) >= 0 && StateOf(part) < std::ssize(states)));
  const int index = reader_.FindParameter(parameter);
  if (index < 0) {
    return absl::NotFoundError(absl::StrCat(reader_.folder(), " has no parameter ", parameter));
  }
  const int64_t elements = reader_.ElementsOf(part, reader_.manifest().parameters[index]), size = std::ssize(out);
  const SavedValues form = reader_.manifest().ValuesOf(reader_.manifest().parameters[index]);
  const std::string what = part == SavedPart::kValue ? "" : absl::StrCat(NameOf(part, states), " of ");
  SHALE_RETURN_IF_ERROR(CheckElements(absl::StrCat(what, "parameter ", parameter), elements, begin, size));
  if (const SavedParameter& saved = reader_.manifest().parameters[index]; part == SavedPart::kValue && saved.in_base) {
    return ReadFromBase(saved, begin, out);
  }
  if (part == SavedPart::kValue && form == SavedValues::kNf4) return ReadNf4(index, begin, out);
  if (part != SavedPart::kValue || form == SavedValues::kFloat32) {
    const DType dtype = part == SavedPart::kValue ? DType::kFloat32 : states[StateOf(part)].dtype;
    return ReadPart(part, index, begin, size, [&](int64_t at, const char* bytes, int64_t count) {
      if (dtype == DType::kFloat32) {
        std::memcpy(out.data() + at, bytes, count * sizeof(float));
      } else if (dtype == DType::kBFloat16) {
        const auto* values = reinterpret_cast<const BFloat16*>(bytes);
        std::transform(values, values + count, out.begin() + at, [](BFloat16 value) { return ToFloat(value); });
      } else {
        const auto* codes = reinterpret_cast<const uint8_t*>(bytes);
        std::copy(codes, codes + count, out.begin() + at);
      }
    });
  }
  SHALE_RETURN_IF_ERROR(
      ReadPart(SavedPart::kHigh, index, begin, size, [&](int64_t at, const char* bytes, int64_t count) {
        const auto* high = reinterpret_cast<const BFloat16*>(bytes);
        for (int64_t i = 0; i < count; ++i) out[at + i] = ToFloat(high[i]);
      }));
  if (form == SavedValues::kBFloat16) return absl::OkStatus();
  return ReadPart(SavedPart::kLow, index, begin, size, [&](int64_t at, const char* bytes, int64_t count) {
    const auto* low = reinterpret_cast<const int16_t*>(bytes);
    for (int64_t i = 0; i < count; ++i) {
      // The first ReadPart stored the bits of the bf16 weight in the upper half.
      const auto weight = static_cast<uint16_t>(std::bit_cast<uint32_t>(out[at + i]) >> 16);
      out[at + i] = JoinMaster(BFloat16{weight}, low[i]);
    }
  });
}

}  // namespace shale
