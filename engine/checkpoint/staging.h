// Staging memory, through which checkpoints are written and read.
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

}  // namespace shale
