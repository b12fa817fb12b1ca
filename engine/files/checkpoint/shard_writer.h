// Writes the shard file of one rank. Its bytes go through a StagingBuffer to a ChunkWriter, which writes them as chunks
// while the next ones are copied.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/io/file.h"
#include "kernels/element_range.h"

namespace shale {

// Owns uninitialized bytes, aligned for direct I/O. The system provides the pages on first use.
class StagingBuffer {
 public:
  // Returns ResourceExhausted if the memory cannot be allocated.
  static absl::StatusOr<StagingBuffer> Create(int64_t bytes) {
    auto* data = static_cast<char*>(::operator new(bytes, std::align_val_t(kDirectAlignment), std::nothrow));
    if (data != nullptr) return StagingBuffer(bytes, data);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes to read or write checkpoints through"));
  }
  // Like Create, but throws std::bad_alloc on failure.
  explicit StagingBuffer(int64_t bytes)
      : StagingBuffer(bytes, static_cast<char*>(::operator new(bytes, std::align_val_t(kDirectAlignment)))) {}

  absl::Span<char> span() const { return absl::MakeSpan(data_.get(), bytes_); }

 private:
  struct Delete {
    void operator()(char* data) const { ::operator delete(data, std::align_val_t(kDirectAlignment)); }
  };
  StagingBuffer(int64_t bytes, char* data) : bytes_(bytes), data_(data) {}

  int64_t bytes_;
  std::unique_ptr<char, Delete> data_;
};

// One chunk is filled and one waits while a third is written, so that the disk never waits.
inline constexpr int64_t kWriteStagingBytes = 3 * kCheckpointChunkBytes;
// A rank reads into one chunk, and converts the elements into another on their way to the device.
inline constexpr int64_t kReadStagingBytes = 2 * kCheckpointChunkBytes;
// The least with which a rank's weights can be filled in (RankState::Fill): two rounds of a group of weights in 4 bits.
inline constexpr int64_t kLeastFillStagingBytes = int64_t{192} << 10;
// Enough for a rank that both writes and reads, but not at the same time.
inline constexpr int64_t kStagingBytes = std::max(kWriteStagingBytes, kReadStagingBytes);

// Gathers appended bytes into chunks of kCheckpointChunkBytes and computes a checksum of each. A background thread
// writes the chunks, so that the disk works while the next chunk is filled. Used by one thread at a time.
class ChunkWriter {
 public:
  // Borrows all three arguments. `staging` holds the chunks that are being filled or wait to be written; it must have
  // room for at least two. `saved` receives the file's size and the checksums. Returns ResourceExhausted if the thread
  // cannot be started.
  static absl::StatusOr<std::unique_ptr<ChunkWriter>> Create(WritableFile& file, absl::Span<char> staging,
                                                             SavedFile& saved);
  ~ChunkWriter();

  // Copies the bytes into the staging memory with `copy(to, from, size)`. Returns the error of `copy`, or the error of
  // the first write that failed.
  absl::Status Append(const std::byte* bytes, int64_t size,
                      absl::FunctionRef<absl::Status(void*, const std::byte*, int64_t)> copy);
  // Returns when all bytes have been written to the file. Does not flush the file. Nothing may be appended afterwards.
  absl::Status Finish();

 private:
  ChunkWriter(WritableFile& file, absl::Span<char> staging, SavedFile& saved);

  int64_t slots() const { return std::ssize(staging_) / kCheckpointChunkBytes; }
  char* Slot(int64_t chunk) const { return staging_.data() + chunk % slots() * kCheckpointChunkBytes; }
  void Loop();
  // Hands the chunk in the current slot to the thread, then waits for a free slot.
  absl::Status Flush();
  // Waits until at most `left` chunks are unwritten. Returns early, with the error, once a write has failed.
  absl::Status WaitFor(int64_t left);

  WritableFile& file_;
  const absl::Span<char> staging_;
  SavedFile& saved_;
  int64_t used_ = 0;  // Bytes in the current slot, which holds chunk `filled_`.

  std::mutex mutex_;
  std::condition_variable changed_;
  // mutex_ guards these four and saved_.size_bytes.
  int64_t filled_ = 0;
  int64_t written_ = 0;
  bool ended_ = false;
  absl::Status status_;

  std::thread thread_;
};

// Elements of one part of one parameter, in any memory that the CopyToHost of WriteShard can read. Borrows them.
struct PieceSource {
  int32_t parameter = 0;  // Index into Manifest::parameters.
  SavedPart part = SavedPart::kValue;
  ElementRange range;  // Elements of the part.
  int64_t element_bytes = 4;
  const std::byte* data = nullptr;
};

// Copies data to host memory. The copy is complete when the call returns.
using CopyToHost = absl::FunctionRef<absl::Status(void* to, const std::byte* from, int64_t bytes)>;
// Copies data that is already in host memory, as a CopyToHost.
absl::Status CopyHostMemory(void* to, const std::byte* from, int64_t bytes);

// Writes the pieces, in the given order, to ShardFileName(rank, ranks) in `folder`, and flushes the file. Returns the
// file's entry for the manifest. Uses no memory besides the header and `staging`, which must have at least
// kWriteStagingBytes. REQUIRES: parts with wider elements come first.
absl::StatusOr<SavedFile> WriteShard(FileSystem& files, const std::string& folder, int64_t rank, int64_t ranks,
                                     absl::Span<const PieceSource> pieces, CopyToHost copy, absl::Span<char> staging);

}  // namespace shale
