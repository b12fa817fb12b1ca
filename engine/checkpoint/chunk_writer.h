// Cuts a stream of bytes into the chunks of a shard file.
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

// Appended bytes are gathered to chunks of kCheckpointChunkBytes, which get a checksum each, and a thread of its own
// writes them, so that the disk works while the next chunk is filled. Used by one thread.
class ChunkWriter {
 public:
  // Borrows all three. `staging` holds the chunks that are being filled or wait for the disk: at least two. `saved`
  // gets size and checksums. ResourceExhausted if no thread can be started.
  static absl::StatusOr<std::unique_ptr<ChunkWriter>> Create(WritableFile& file, absl::Span<char> staging,
                                                             SavedFile& saved);
  ~ChunkWriter();

  // Brings the bytes here with `copy(to, from, size)`. Fails with its error, or that of the first write that did.
  absl::Status Append(const std::byte* bytes, int64_t size,
                      absl::FunctionRef<absl::Status(void*, const std::byte*, int64_t)> copy);
  // Returns when all bytes are with the system. Nothing may follow.
  absl::Status Finish();

 private:
  ChunkWriter(WritableFile& file, absl::Span<char> staging, SavedFile& saved);

  int64_t slots() const { return std::ssize(staging_) / kCheckpointChunkBytes; }
  char* Slot(int64_t chunk) const { return staging_.data() + chunk % slots() * kCheckpointChunkBytes; }
  void Loop();
  // Hands the chunk in the current slot to the thread, and waits for a free slot.
  absl::Status Flush();
  // Waits until at most `left` chunks are unwritten.
  absl::Status WaitFor(int64_t left);

  WritableFile& file_;
  const absl::Span<char> staging_;
  SavedFile& saved_;
  int64_t used_ = 0;  // Bytes in the current slot, that of chunk `filled_`.

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_, with saved_.size_bytes.
  int64_t filled_ = 0;
  int64_t written_ = 0;
  bool ended_ = false;
  absl::Status status_;

  std::thread thread_;
};

}  // namespace shale
