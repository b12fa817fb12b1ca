#include "engine/files/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {

ChunkWriter::ChunkWriter(WritableFile& file, absl::Span<char> staging, SavedFile& saved)
    : file_(file), staging_(staging), saved_(saved) {
  SHALE_CHECK(slots() >= 2) << std::ssize(staging) << " bytes";
}

absl::StatusOr<std::unique_ptr<ChunkWriter>> ChunkWriter::Create(WritableFile& file, absl::Span<char> staging,
                                                                 SavedFile& saved) {
  auto writer = absl::WrapUnique(new ChunkWriter(file, staging, saved));
  try {
    writer->thread_ = std::thread([w = writer.get()] { w->Loop(); });
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a thread that writes ", saved.name, ": ", e.what(),
                                                     "; raise the limit on threads (ulimit -u)"));
  }
  return writer;
}

ChunkWriter::~ChunkWriter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status ChunkWriter::Append(const std::byte* bytes, int64_t size,
                                 absl::FunctionRef<absl::Status(void*, const std::byte*, int64_t)> copy) {
  while (size > 0) {
    const int64_t count = std::min<int64_t>(size, kCheckpointChunkBytes - used_);
    // No lock is needed to read filled_, because only this thread changes it.
    SHALE_RETURN_IF_ERROR(copy(Slot(filled_) + used_, bytes, count));
    used_ += count;
    bytes += count;
    size -= count;
    if (used_ == kCheckpointChunkBytes) SHALE_RETURN_IF_ERROR(Flush());
  }
  return absl::OkStatus();
}

absl::Status ChunkWriter::Finish() {
  if (used_ > 0) SHALE_RETURN_IF_ERROR(Flush());
  return WaitFor(0);
}

absl::Status ChunkWriter::Flush() {
  saved_.chunk_crcs.push_back(Crc32c(absl::string_view(Slot(filled_), used_)));
  {
    const std::lock_guard lock(mutex_);
    saved_.size_bytes += used_;
    ++filled_;
  }
  used_ = 0;
  changed_.notify_all();
  return WaitFor(slots() - 1);
}

absl::Status ChunkWriter::WaitFor(int64_t left) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return filled_ - written_ <= left || !status_.ok(); });
  return status_;
}

void ChunkWriter::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ended_ || filled_ > written_; });
    if (ended_) return;
    const int64_t chunk = written_;
    const int64_t begin = chunk * kCheckpointChunkBytes;
    // Only the last chunk may be shorter, because nothing is appended after it.
    const int64_t size = std::min(kCheckpointChunkBytes, saved_.size_bytes - begin);
    lock.unlock();
    absl::Status status = file_.WriteAt(begin, absl::string_view(Slot(chunk), size));
    lock.lock();
    status_ = std::move(status);
    changed_.notify_all();
    if (!status_.ok()) return;
    ++written_;
  }
}

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
