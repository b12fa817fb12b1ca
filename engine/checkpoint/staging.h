// The memory that a checkpoint is written or read through.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file_system.h"

namespace shale {

// Uninitialised bytes, aligned for direct writes. Pages are taken only as they are used.
class StagingBuffer {
 public:
  // ResourceExhausted if there is not the memory.
  static absl::StatusOr<StagingBuffer> Create(int64_t bytes) {
    auto* data = static_cast<char*>(::operator new(bytes, std::align_val_t(kDirectAlignment), std::nothrow));
    if (data != nullptr) return StagingBuffer(bytes, data);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes to read or write checkpoints through"));
  }
  // Throws std::bad_alloc.
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

// One chunk is filled and one waits while the one before them is written: the disk never does.
inline constexpr int64_t kWriteStagingBytes = 3 * kCheckpointChunkBytes;
// What a rank reads through: a chunk, and what becomes of it on its way to the device.
inline constexpr int64_t kReadStagingBytes = 2 * kCheckpointChunkBytes;
// What a rank needs that does one or the other.
inline constexpr int64_t kStagingBytes = std::max(kWriteStagingBytes, kReadStagingBytes);

}  // namespace shale
