// TextBudget: bounds the bytes and the time that a tokenizer.json may take for one text.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace shale {

// The most steps in a list of a tokenizer.json, such as its normalizers. Known files have six.
inline constexpr size_t kMaxSteps = 64;

// Used by one thread.
class TextBudget {
 public:
  // Of a text of this many bytes: two seconds of processor time and a microsecond for each byte. Normal forms of known
  // tokenizers take a hundredth of that. Thousands of bytes may become twelve times as many, as NFKC can make them, and
  // millions four times.
  explicit TextBudget(size_t bytes);

  // Returns ResourceExhausted if the time is over. Looks at the clock only in every fourth call.
  absl::Status CheckTime() { return (++calls_ & 3) == 0 ? CheckClock() : absl::OkStatus(); }
  absl::Status CheckClock() const;
  // Returns ResourceExhausted if a step makes a text of more bytes than `most_bytes`.
  absl::Status CheckBytes(size_t bytes) const;
  // Does the same for pieces of so many bytes together, of which there may be two for each byte of the text.
  absl::Status CheckPieces(size_t pieces, size_t bytes) const;

 private:
  size_t bytes_, most_bytes_;
  std::chrono::nanoseconds most_time_;
  std::chrono::nanoseconds begin_;                      // In the time of the thread.
  std::chrono::steady_clock::time_point earliest_end_;  // The time of the thread cannot be over before this.
  uint32_t calls_ = 0;
};

}  // namespace shale
