#include "engine/tokenize/text_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace shale {

TextBudget::TextBudget(size_t bytes)
    : bytes_(bytes),
      most_bytes_(std::max(4 * bytes, std::min(12 * bytes + (size_t{1} << 16), size_t{1} << 28))),
      deadline_(std::chrono::steady_clock::now() + std::chrono::seconds(2) + std::chrono::microseconds(bytes)) {}

absl::Status TextBudget::CheckBytes(size_t bytes) const {
  if (bytes <= most_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the tokenizer makes more than ", most_bytes_,
                                                   " bytes of a text of ", bytes_, " bytes, the most that is allowed"));
}

absl::Status TextBudget::CheckPieces(size_t pieces, size_t bytes) const {
  const size_t most = 2 * bytes_ + (size_t{1} << 16);
  if (pieces <= most) return CheckBytes(bytes);
  return absl::ResourceExhaustedError(absl::StrCat("the tokenizer splits a text of ", bytes_, " bytes into more than ",
                                                   most, " pieces, the most that is allowed"));
}

absl::Status TextBudget::CheckClock() const {
  if (std::chrono::steady_clock::now() < deadline_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the tokenizer takes more than 2 seconds and a microsecond for each byte of a text of ", bytes_,
                   " bytes, the most that is allowed"));
}

}  // namespace shale
