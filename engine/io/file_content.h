// FileContent: knows a file by its bytes, so that a file that is only touched or copied counts as unchanged.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/io/file.h"

namespace shale {

// Copies share what they have learned. Safe for concurrent use by multiple threads.
class FileContent {
 public:
  // Knows bytes [begin, begin + bytes) of a file, which had `identity` when they had the checksum `crc64` (Crc64).
  FileContent(const InputFile::Identity& identity, int64_t begin, int64_t bytes, uint64_t crc64);

  uint64_t crc64() const;
  // Returns OK if `file` is in the state of `identity`. Otherwise, if it has the same size, reads the bytes again, once
  // for each new state, and returns OK if they have the same checksum. Returns DataLoss if the file has other bytes.
  // Allocates nothing while the state is that of `identity`.
  absl::Status Check(const InputFile& file) const;

 private:
  struct Known;
  std::shared_ptr<Known> known_;
};

// Returns the Crc64 of bytes [begin, begin + bytes) of a file.
absl::StatusOr<uint64_t> Crc64OfFile(const InputFile& file, int64_t begin, int64_t bytes);

}  // namespace shale
