#include "engine/tokenize/text_budget.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace shale {
namespace {

// The processor time of this thread.
std::chrono::nanoseconds ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

TextBudget::TextBudget(size_t bytes)
    : bytes_(bytes),
      most_bytes_(std::max(4 * bytes, std::min(12 * bytes + (size_t{1} << 16), size_t{1} << 28))),
      most_time_(std::chrono::seconds(2) + std::chrono::microseconds(bytes)),
      begin_(ThreadTime()),
      earliest_end_(std::chrono::steady_clock::now() + most_time_) {}

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
  // A machine that is busy with other things refuses no tokenizer. The clock of a thread takes a system call to read,
  // the other clock does not.
  if (std::chrono::steady_clock::now() < earliest_end_ || ThreadTime() - begin_ < most_time_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the tokenizer takes more than 2 seconds and a microsecond for each byte of a text of ", bytes_,
                   " bytes, the most that is allowed"));
}

}  // namespace shale
