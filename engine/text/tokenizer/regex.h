// Regex: a regular expression of a tokenizer.json, matched by PCRE2. TextBudget bounds the bytes and the time that a
// tokenizer.json may take for one text.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

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

// Bytes [begin, end) of a text: a match, or what lies between two matches.
struct Match {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

// Immutable and cheap to copy. Safe for concurrent use by multiple threads.
class Regex {
 public:
  // Compiles an expression in the syntax of the tokenizers library, which uses Oniguruma. Returns InvalidArgument if
  // PCRE2 does not accept it, if it can match the empty text, and if it contains something that the two libraries may
  // understand differently: sets in sets, {n,m}+, groups with names or options and others. \s, \w, \d, \b, ^, $ and .
  // match what they match in Oniguruma. \p{...} matches what it matches in PCRE2, whose Unicode version may be older.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  // Compiles an expression that matches `text` alone.
  static absl::StatusOr<Regex> Literal(absl::string_view text);

  // Calls `take` with the matches in `text`, and with what lies between them, in order, until it returns an error,
  // which is returned. Returns ResourceExhausted if PCRE2 gives up because a match takes too long, or if the time of
  // the budget is over. REQUIRES: `text` is well-formed UTF-8.
  absl::Status ForEach(absl::string_view text, TextBudget& budget,
                       const std::function<absl::Status(const Match&)>& take) const;
  // Appends them to `*parts`.
  absl::Status Find(absl::string_view text, TextBudget& budget, std::vector<Match>* parts) const;

 private:
  Regex() = default;
  static absl::StatusOr<Regex> CompileTranslated(absl::string_view shown, const std::string& pattern);

  std::string pattern_;
  std::shared_ptr<const void> code_;
};

}  // namespace shale
