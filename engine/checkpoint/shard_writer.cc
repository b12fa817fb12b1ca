#include "engine/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/checkpoint/shard_header.h"
#include "engine/io/crc32c.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Cuts a stream of bytes into the chunks of a file, with a checksum each.
class ChunkWriter {
 public:
  ChunkWriter(WritableFile& file, absl::Span<char> staging, SavedFile& saved)
      : file_(file), staging_(staging.subspan(0, kCheckpointChunkBytes)), saved_(saved) {}

  absl::Status Append(const char* bytes, int64_t size) {
    while (size > 0) {
      const int64_t count = std::min<int64_t>(size, std::ssize(staging_) - used_);
      std::memcpy(staging_.data() + used_, bytes, count);
      used_ += count;
      bytes += count;
      size -= count;
      if (used_ == std::ssize(staging_)) SHALE_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (used_ == 0) return absl::OkStatus();
    const absl::string_view chunk(staging_.data(), used_);
    saved_.chunk_crcs.push_back(Crc32c(chunk));
    SHALE_RETURN_IF_ERROR(file_.WriteAt(saved_.size_bytes, chunk));
    saved_.size_bytes += used_;
    used_ = 0;
    return absl::OkStatus();
  }

 private:
  WritableFile& file_;
  const absl::Span<char> staging_;
  SavedFile& saved_;
  int64_t used_ = 0;
};

}  // namespace

absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kCheckpointChunkBytes);
  ShardHeader header{.rank = rank};
  for (const PieceSource& piece : pieces) header.pieces.push_back({piece.parameter, piece.part, piece.range});
  const std::string head = SerializeShardHeader(header);

  SavedFile saved{.name = ShardFileName(rank, ranks)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(JoinPath(folder, saved.name)));
  ChunkWriter writer(*file, staging, saved);
  SHALE_RETURN_IF_ERROR(writer.Append(head.data(), std::ssize(head)));
  for (size_t i = 0; i < pieces.size(); ++i) {
    SHALE_RETURN_IF_ERROR(
        writer.Append(reinterpret_cast<const char*>(pieces[i].data), header.pieces[i].size_bytes()));
  }
  SHALE_RETURN_IF_ERROR(writer.Flush());
  SHALE_RETURN_IF_ERROR(file->Sync());
  SHALE_RETURN_IF_ERROR(file->Close());
  return saved;
}

}  // namespace shale
