#include "engine/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <utility>

#include "engine/checkpoint/shard_header.h"
#include "engine/checkpoint/staging.h"
#include "engine/io/crc32c.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Cuts a stream of bytes into the chunks of a file, with a checksum each.
class ChunkWriter {
 public:
  ChunkWriter(WritableFile& file, absl::Span<char> staging, SavedFile& saved)
      : file_(file), staging_(staging), saved_(saved) {}
  ~ChunkWriter() {
    if (writing_.valid()) writing_.wait();
  }

  absl::Status Append(const char* bytes, int64_t size) {
    while (size > 0) {
      const int64_t count = std::min<int64_t>(size, kCheckpointChunkBytes - used_);
      std::memcpy(Half() + used_, bytes, count);
      used_ += count;
      bytes += count;
      size -= count;
      if (used_ == kCheckpointChunkBytes) SHALE_RETURN_IF_ERROR(Flush());
    }
    return absl::OkStatus();
  }

  // Returns when all bytes are with the system.
  absl::Status Finish() {
    if (used_ > 0) SHALE_RETURN_IF_ERROR(Flush());
    return writing_.valid() ? writing_.get() : absl::OkStatus();
  }

 private:
  char* Half() const { return staging_.data() + half_ * kCheckpointChunkBytes; }

  absl::Status Flush() {
    const absl::string_view chunk(Half(), used_);
    const int64_t offset = saved_.size_bytes;
    saved_.chunk_crcs.push_back(Crc32c(chunk));
    saved_.size_bytes += used_;
    if (writing_.valid()) SHALE_RETURN_IF_ERROR(writing_.get());
    writing_ = std::async(std::launch::async, [this, offset, chunk] { return file_.WriteAt(offset, chunk); });
    half_ = 1 - half_;
    used_ = 0;
    return absl::OkStatus();
  }

  WritableFile& file_;
  const absl::Span<char> staging_;
  SavedFile& saved_;
  int half_ = 0;
  int64_t used_ = 0;  // Of the half.
  std::future<absl::Status> writing_;  // The other half.
};

}  // namespace

absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kWriteStagingBytes);
  ShardHeader header{.rank = rank};
  for (const PieceSource& piece : pieces) header.pieces.push_back({piece.parameter, piece.part, piece.range});
  const std::string head = SerializeShardHeader(header);

  SavedFile saved{.name = ShardFileName(rank, ranks)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(JoinPath(folder, saved.name)));
  file->BypassCache();
  ChunkWriter writer(*file, staging, saved);
  SHALE_RETURN_IF_ERROR(writer.Append(head.data(), std::ssize(head)));
  for (size_t i = 0; i < pieces.size(); ++i) {
    SHALE_RETURN_IF_ERROR(
        writer.Append(reinterpret_cast<const char*>(pieces[i].data), header.pieces[i].size_bytes()));
  }
  SHALE_RETURN_IF_ERROR(writer.Finish());
  SHALE_RETURN_IF_ERROR(file->Sync());
  SHALE_RETURN_IF_ERROR(file->Close());
  return saved;
}

}  // namespace shale
