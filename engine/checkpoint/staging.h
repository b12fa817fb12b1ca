// The memory that a checkpoint is written or read through.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "absl/types/span.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file_system.h"

namespace shale {

// Uninitialised bytes, aligned for direct writes. Pages are taken only as they are used.
class StagingBuffer {
 public:
  explicit StagingBuffer(int64_t bytes)
      : bytes_(bytes), data_(static_cast<char*>(::operator new(bytes, std::align_val_t(kDirectAlignment)))) {}

  absl::Span<char> span() const { return absl::MakeSpan(data_.get(), bytes_); }

 private:
  struct Delete {
    void operator()(char* data) const { ::operator delete(data, std::align_val_t(kDirectAlignment)); }
  };
  int64_t bytes_;
  std::unique_ptr<char, Delete> data_;
};

// One chunk is filled and one waits while the one before them is written: the disk never does.
inline constexpr int64_t kWriteStagingBytes = 3 * kCheckpointChunkBytes;
// What a rank reads through.
inline constexpr int64_t kReadStagingBytes = kCheckpointChunkBytes;

}  // namespace shale
