// ChunkWriter writes a stream of bytes as the chunks of a shard file.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file_system.h"

namespace shale {

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

}  // namespace shale
