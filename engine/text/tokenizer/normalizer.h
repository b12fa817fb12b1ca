// Normalizer: changes a text before it is split, as the "normalizer" of a tokenizer.json says.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/tokenizer/part.h"
#include "engine/text/tokenizer/regex.h"

namespace shale {

// Immutable. Safe for concurrent use by multiple threads.
class Normalizer {
 public:
  // Reads "normalizer", which may be null: NFC, NFD, NFKC, NFKD, Prepend, Replace, or a Sequence of them. Refuses
  // others by name.
  static absl::StatusOr<Normalizer> Read(const JsonPart& part);

  bool empty() const { return steps_.empty(); }
  // Returns whether normalizing each line by itself gives the normal form of the text.
  bool by_line() const;
  // Returns whether the library still takes the first character of a normal form for the beginning of the text. It does
  // not if it has replaced several characters there, or removed one.
  bool keeps_start() const;

  // Returns the normal form of `text`: either `text` itself, if nothing changes, or `*buffer`. Returns
  // ResourceExhausted if it takes more bytes or more time than the budget has. REQUIRES: `text` is well-formed UTF-8.
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, TextBudget& budget, std::string* buffer) const;

 private:
  struct Unicode {
    bool compatibility = false, compose = false;
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string content;
    bool keeps_start = false;  // It puts something in the place of one character.
  };
  using Step = std::variant<Unicode, Prepend, Replace>;

  static absl::StatusOr<Step> ReadStep(const JsonPart& part);

  std::vector<Step> steps_;
};

// Returns `text` with each match replaced by `content`. Returns ResourceExhausted as soon as the result has more bytes,
// or has taken more time, than the budget has.
absl::StatusOr<std::string> ReplaceMatches(const Regex& pattern, absl::string_view content, absl::string_view text,
                                           TextBudget& budget);

}  // namespace shale
