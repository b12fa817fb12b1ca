#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "kernels/dtype.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"

namespace shale {
namespace {

// Puts the file's path before a parser's error message.
absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

constexpr int kCachedChunks = 4;

}  // namespace

struct CheckpointValues::StoredRange {
  ElementRange range;
  int64_t rank = 0;
  int64_t offset_bytes = 0;
};

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = JoinPath(folder, kManifestName);
  SHALE_ASSIGN_OR_RETURN(const InputFile file, OpenSavedFile(path));
  constexpr int64_t kMaxBytes = kMaxManifestBytes + kFrameHeadBytes;
  if (file.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.size(), " bytes; at most ", kMaxBytes, " are read"));
  }
  std::string bytes(file.size(), '\0');
  SHALE_RETURN_IF_ERROR(file.ReadAt(0, bytes.data(), std::ssize(bytes)));
  absl::StatusOr<Manifest> manifest = ParseManifest(bytes);
  if (!manifest.ok()) return At(path, manifest.status());
  return manifest;
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& folder) {
  CheckpointReader reader;
  reader.folder_ = folder;
  SHALE_ASSIGN_OR_RETURN(reader.manifest_, ReadManifest(folder));
  for (size_t i = 0; i < reader.manifest_.parameters.size(); ++i) {
    reader.parameter_index_[reader.manifest_.parameters[i].name] = static_cast<int>(i);
  }
  SHALE_RETURN_IF_ERROR(reader.OpenFiles());
  SHALE_RETURN_IF_ERROR(reader.CheckCoverage());
  return reader;
}

absl::StatusOr<InputFile> CheckpointReader::OpenShard(int64_t rank) const {
  const SavedFile& file = manifest_.files[rank];
  const std::string path = JoinPath(folder_, file.name);
  SHALE_ASSIGN_OR_RETURN(InputFile opened, OpenSavedFile(path));
  SHALE_RETURN_IF_ERROR(CheckSavedSize(opened, file));
  return opened;
}

absl::Status CheckpointReader::OpenFiles() {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder_));
  absl::flat_hash_set<absl::string_view> known = {kManifestName};
  for (const SavedFile& file : manifest_.files) known.insert(file.name);
  for (const std::string& name : names) {
    if (!known.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(JoinPath(folder_, name), " is not in the manifest: it does not belong there"));
    }
  }
  auto shards = std::make_shared<std::vector<ShardHeader>>();
  std::string head;
  for (int64_t rank = 0; rank < manifest_.ranks; ++rank) {
    SHALE_ASSIGN_OR_RETURN(const InputFile file, OpenShard(rank));
    head.resize(std::min<int64_t>(file.size(), kFrameHeadBytes));
    SHALE_RETURN_IF_ERROR(file.ReadAt(0, head.data(), std::ssize(head)));
    const absl::StatusOr<int64_t> bytes = ShardHeadBytes(head);
    if (!bytes.ok()) return At(file.path(), bytes.status());
    head.resize(std::min(file.size(), *bytes));
    SHALE_RETURN_IF_ERROR(file.ReadAt(0, head.data(), std::ssize(head)));
    absl::StatusOr<ShardHeader> header = ParseShardHeader(head, file.size(), manifest_.states);
    if (!header.ok()) return At(file.path(), header.status());
    if (header->rank != rank) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), " is the shard of rank ", header->rank, ": files were swapped"));
    }
    for (const ShardPiece& piece : header->pieces) {
      const bool known = piece.parameter < static_cast<int64_t>(manifest_.parameters.size());
      if (!known || piece.range.end > ElementsOf(piece.part, manifest_.parameters[piece.parameter])) {
        return absl::InvalidArgumentError(absl::StrCat(file.path(), " has elements up to ", piece.range.end,
                                                       " of parameter ", piece.parameter,
                                                       ", which the manifest does not have"));
      }
    }
    shards->push_back(*std::move(header));
  }
  shards_ = std::move(shards);
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckCoverage() const {
  const std::vector<PartSpec> parts = manifest_.parts();
  std::vector<std::vector<ElementRange>> ranges(manifest_.parameters.size() * parts.size());
  for (const ShardHeader& shard : *shards_) {
    for (const ShardPiece& piece : shard.pieces) {
      const auto part =
          std::find_if(parts.begin(), parts.end(), [&](const PartSpec& spec) { return spec.part == piece.part; });
      const SavedParameter& parameter = manifest_.parameters[piece.parameter];
      if (part == parts.end() || !manifest_.Has(piece.part, parameter)) {
        return absl::InvalidArgumentError(absl::StrCat(
            folder_, ": ", ShardFileName(shard.rank, manifest_.ranks), " has ", NameOf(piece.part, manifest_.states),
            ", and the manifest says ", ToString(manifest_.ValuesOf(parameter))));
      }
      ranges[piece.parameter * parts.size() + (part - parts.begin())].push_back(piece.range);
    }
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    const SavedParameter& parameter = manifest_.parameters[i / parts.size()];
    const PartSpec& part = parts[i % parts.size()];
    if (!manifest_.Has(part.part, parameter)) continue;
    const int64_t elements = manifest_.ElementsOf(part.part, parameter);
    std::sort(ranges[i].begin(), ranges[i].end(), [](auto a, auto b) { return a.begin < b.begin; });
    int64_t end = 0;
    ranges[i].push_back({elements, elements});
    for (const ElementRange& range : ranges[i]) {
      if (range.begin != end) {
        return absl::InvalidArgumentError(absl::StrCat(
            folder_, ": ", part.name, " of ", parameter.name, range.begin > end ? " lacks" : " has", " elements ",
            std::min(range.begin, end), " to ", std::max(range.begin, end), range.begin > end ? "" : " twice"));
      }
      end = range.end;
    }
  }
  return absl::OkStatus();
}

int64_t CheckpointReader::ElementsOf(SavedPart part, const SavedParameter& parameter) const {
  if (StateOf(part) >= 0 && !manifest_.Has(part, parameter)) return 0;
  return manifest_.ElementsOf(part, parameter);
}

int64_t CheckpointReader::size_bytes() const {
  int64_t bytes = 0;
  for (const SavedFile& file : manifest_.files) bytes += file.size_bytes;
  return bytes;
}

int CheckpointReader::FindParameter(absl::string_view name) const {
  const auto found = parameter_index_.find(name);
  return found == parameter_index_.end() ? -1 : found->second;
}

absl::StatusOr<absl::string_view> CheckpointReader::ReadChunk(int64_t rank, int64_t chunk, absl::Span<char> out) const {
  SHALE_ASSIGN_OR_RETURN(const InputFile file, OpenShard(rank));
  return ReadSavedChunk(file, manifest_.files[rank], chunk, out);
}

absl::Status CheckpointReader::Stream(absl::FunctionRef<ElementRange(const ShardPiece&)> wanted,
                                      absl::FunctionRef<absl::Status(const ShardPiece&, const char*)> sink,
                                      absl::Span<char> staging) const {
  for (const ShardHeader& shard : *shards_) {
    std::vector<ShardPiece> parts;  // The requested ranges of this file's pieces, in file order.
    for (const ShardPiece& piece : shard.pieces) {
      ShardPiece part = piece;
      part.range = Intersect(wanted(piece), piece.range);
      if (part.range.begin >= part.range.end) continue;
      part.offset_bytes += (part.range.begin - piece.range.begin) * part.element_bytes;
      parts.push_back(part);
    }
    if (parts.empty()) continue;
    SHALE_ASSIGN_OR_RETURN(const InputFile file, OpenShard(shard.rank));
    file.ReadsInOrder();
    int64_t held = -1;  // The chunk in `staging`.
    absl::string_view bytes;
    for (ShardPiece part : parts) {
      // A piece may span several chunks; an element never does.
      while (part.range.begin < part.range.end) {
        const int64_t chunk = part.offset_bytes / kCheckpointChunkBytes;
        if (chunk != held) {
          SHALE_ASSIGN_OR_RETURN(bytes, ReadSavedChunk(file, manifest_.files[shard.rank], chunk, staging));
          file.Forget(chunk * kCheckpointChunkBytes, std::ssize(bytes));
          held = chunk;
        }
        const int64_t at = part.offset_bytes - chunk * kCheckpointChunkBytes;
        ShardPiece here = part;
        here.range.end = std::min(part.range.end, part.range.begin + (std::ssize(bytes) - at) / part.element_bytes);
        SHALE_RETURN_IF_ERROR(sink(here, bytes.data() + at));
        part.offset_bytes += here.size_bytes();
        part.range.begin = here.range.end;
      }
    }
  }
  return absl::OkStatus();
}

CheckpointValues::CheckpointValues(const CheckpointReader& reader, ReadBase base)
    : reader_(reader),
      base_(std::move(base)),
      parts_(static_cast<int64_t>(StatePart(std::ssize(reader.manifest().states))) - 1 + kNf4Parts),
      stored_(reader.manifest().parameters.size() * parts_),
      cache_(kCachedChunks) {
  for (const ShardHeader& shard : reader.shards()) {
    for (const ShardPiece& piece : shard.pieces) {
      StoredRanges(piece.part, piece.parameter).push_back({piece.range, shard.rank, piece.offset_bytes});
    }
  }
  for (std::vector<StoredRange>& places : stored_) {
    std::sort(places.begin(), places.end(),
              [](const StoredRange& a, const StoredRange& b) { return a.range.begin < b.range.begin; });
  }
}

std::vector<CheckpointValues::StoredRange>& CheckpointValues::StoredRanges(SavedPart part, int64_t parameter) {
  // Parts in 4 bits come last.
  const int64_t place = IsNf4(part)
                            ? static_cast<int64_t>(part) - static_cast<int64_t>(SavedPart::kNf4Means) - 1 + parts_
                            : static_cast<int64_t>(part) - 1;
  return stored_[parameter * parts_ + place];
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
  const std::vector<StoredRange>& places = StoredRanges(part, parameter);
  const int64_t element_bytes = BytesPerElement(part, reader_.manifest().states), end = begin + elements;
  auto place =
      std::partition_point(places.begin(), places.end(), [&](const StoredRange& p) { return p.range.end <= begin; });
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
    of_base_ = std::make_unique<StoredBaseValues>(base_, manifest.ValuesOf(parameter), parameter);
  }
  return of_base_->Read(begin, out);
}

CheckpointValues::~CheckpointValues() = default;

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
