// CountsWriter: writes a file with one bit for each token: whether it counts in the loss (TextTokens::counts_path).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/io/file.h"

namespace shale {

// Bit i % 8 of byte i / 8 belongs to token i. Writes no file if all tokens count. Used by one thread.
class CountsWriter {
 public:
  explicit CountsWriter(std::string path) : path_(std::move(path)) {}

  // Adds `tokens` tokens. `counts` has 1 or 0 for each, or is empty if all of them count.
  absl::Status Add(int64_t tokens, absl::Span<const uint8_t> counts);
  // Makes the file durable, if there is one. Afterwards the object may only be destroyed.
  absl::Status End();

 private:
  absl::Status Put(bool counts);
  absl::Status Flush();

  std::string path_;
  int64_t all_ = 0;  // Tokens added before file_ exists. All of them count.
  std::optional<DurableFile> file_;
  int64_t offset_ = 0;
  std::string buffer_;
  uint8_t byte_ = 0;
  int bits_ = 0;  // Bits of byte_ that are set or cleared.
};

}  // namespace shale
