#include "engine/checkpoint/chunk_writer.h"

#include <algorithm>
#include <system_error>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/io/crc32c.h"
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

}  // namespace shale
