#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/store.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Damaged = absl::FunctionRef<void(const absl::Status&)>;

// Verifies the chunks that lie fully within the file, whose size may differ from the recorded one. Returns the number
// of bytes read.
absl::StatusOr<int64_t> VerifyChunks(const InputFile& file, const SavedFile& saved, absl::Span<char> staging,
                                     Damaged damaged) {
  int64_t bytes = 0;
  for (int64_t chunk = 0; chunk < std::ssize(saved.chunk_crcs); ++chunk) {
    const int64_t end = std::min((chunk + 1) * kCheckpointChunkBytes, saved.size_bytes);
    if (end > file.size()) break;
    const absl::Status status = ReadSavedChunk(file, saved, chunk, staging).status();
    bytes = end;
    if (status.ok()) continue;
    if (!IsDamage(status)) return status;
    damaged(status);
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Verified> VerifyCheckpoint(const std::string& folder, absl::Span<char> staging,
                                          absl::FunctionRef<void(const std::string&)> damaged) {
  SHALE_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  Verified verified;
  const auto tell = [&](const absl::Status& status) {
    ++verified.damages;
    damaged(std::string(status.message()));
  };
  for (const SavedFile& saved : manifest.files) {
    const absl::StatusOr<InputFile> file = OpenSavedFile(JoinPath(folder, saved.name));
    if (!file.ok()) {
      if (!IsDamage(file.status())) return file.status();
      tell(file.status());
      continue;
    }
    if (const absl::Status size = CheckSavedSize(*file, saved); !size.ok()) tell(size);
    SHALE_ASSIGN_OR_RETURN(const int64_t bytes, VerifyChunks(*file, saved, staging, tell));
    verified.bytes += bytes;
  }
  if (verified.damages > 0) return verified;
  // The files match the manifest, but together they may still not form a checkpoint.
  if (const absl::Status status = CheckpointReader::Open(folder).status(); !status.ok()) {
    if (!IsDamage(status) && !absl::IsUnimplemented(status)) return status;
    tell(status);
  }
  return verified;
}

absl::Status CheckpointReader::Verify(absl::Span<char> staging) const {
  constexpr int64_t kNamed = 20;
  std::vector<std::string> named;
  SHALE_ASSIGN_OR_RETURN(const Verified verified, VerifyCheckpoint(folder_, staging, [&](const std::string& damage) {
                           if (std::ssize(named) < kNamed) named.push_back(damage);
                         }));
  if (verified.damages == 0) return absl::OkStatus();
  const int64_t more = verified.damages - std::ssize(named);
  return absl::DataLossError(
      absl::StrCat(absl::StrJoin(named, "\n"), more > 0 ? absl::StrCat("\nand ", more, " more") : ""));
}

}  // namespace shale
