// Computes CRC-32C (Castagnoli; RFC 3720, appendix B.4), by ISA-L with the widest instructions that the machine has.
//
// FileContent: knows a file by its bytes, so that a file that is only touched or copied counts as unchanged.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/files/io/file.h"

namespace shale {

// Returns the checksum of `bytes`. If `before` is the checksum of the preceding bytes, returns that of both together.
// Crc32c("123456789") is 0xE3069283.
uint32_t Crc32c(absl::string_view bytes, uint32_t before = 0);

// Returns a 64-bit checksum (CRC-64 of ECMA-182, reflected), for names of what is too large for a collision to be
// unlikely with 32 bits. Crc64("123456789") is 0x995DC9BBDF1939FA.
uint64_t Crc64(absl::string_view bytes, uint64_t before = 0);

// Returns the Crc64 of two strings together from that of each, and the number of bytes of the second.
uint64_t Crc64OfBoth(uint64_t first, uint64_t second, int64_t second_bytes);

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
