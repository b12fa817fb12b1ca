// CountsWriter: writes which tokens count in the loss, as a bit for each (TextTokens::counts_path).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/io/file.h"

namespace shale {

// Bit i % 8 of byte i / 8 is that of token i. There is no file as long as all tokens count. Used by one thread.
class CountsWriter {
 public:
  explicit CountsWriter(std::string path) : path_(std::move(path)) {}

  // Adds `tokens` tokens, with 1 or 0 for each, or none if all count.
  absl::Status Add(int64_t tokens, absl::Span<const uint8_t> counts);
  // Makes the file durable, if there is one. Afterwards the object may only be destroyed.
  absl::Status End();

 private:
  absl::Status Put(bool counts);
  absl::Status Flush();

  std::string path_;
  int64_t all_ = 0;  // Tokens before the file exists.
  std::optional<DurableFile> file_;
  int64_t offset_ = 0;
  std::string buffer_;
  uint8_t byte_ = 0;
  int bits_ = 0;  // In byte_.
};

}  // namespace shale
