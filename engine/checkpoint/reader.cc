#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/checkpoint/framing.h"
#include "engine/checkpoint/saved_file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Puts the file's path before a parser's error message.
absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

}  // namespace

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
    shards_.push_back(*std::move(header));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::CheckCoverage() const {
  const std::vector<PartSpec> parts = manifest_.parts();
  std::vector<std::vector<ElementRange>> ranges(manifest_.parameters.size() * parts.size());
  for (const ShardHeader& shard : shards_) {
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
    const int64_t elements = part.ElementsOf(parameter.elements());
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
  if (StateOf(part) >= 0 && parameter.frozen) return 0;
  return CeilDivide(parameter.elements(), BlockOf(part, manifest_.states));
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
  for (const ShardHeader& shard : shards_) {
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

}  // namespace shale
