#include "engine/checkpoint/shard_writer.h"

#include <cstring>
#include <memory>

#include "engine/checkpoint/chunk_writer.h"
#include "engine/checkpoint/shard_header.h"
#include "engine/checkpoint/staging.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {

absl::Status CopyHostMemory(void* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, CopyToHost copy, absl::Span<char> staging) {
  SHALE_CHECK(std::ssize(staging) >= kWriteStagingBytes);
  ShardHeader header{.rank = rank};
  for (const PieceSource& piece : pieces) {
    header.pieces.push_back({piece.parameter, piece.part, piece.range, piece.element_bytes});
  }
  const std::string head = SerializeShardHeader(header);

  SavedFile saved{.name = ShardFileName(rank, ranks)};
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(JoinPath(folder, saved.name)));
  file->BypassCache();
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<ChunkWriter> writer, ChunkWriter::Create(*file, staging, saved));
  SHALE_RETURN_IF_ERROR(
      writer->Append(reinterpret_cast<const std::byte*>(head.data()), std::ssize(head), CopyHostMemory));
  for (size_t i = 0; i < pieces.size(); ++i) {
    SHALE_RETURN_IF_ERROR(writer->Append(pieces[i].data, header.pieces[i].size_bytes(), copy));
  }
  SHALE_RETURN_IF_ERROR(writer->Finish());
  SHALE_RETURN_IF_ERROR(file->Sync());
  SHALE_RETURN_IF_ERROR(file->Close());
  return saved;
}

}  // namespace shale
