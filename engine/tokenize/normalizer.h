// Normalizer: what a tokenizer.json does to a text before it is split.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/part.h"

namespace shale {

// Immutable. Safe for concurrent use by multiple threads.
class Normalizer {
 public:
  // Reads "normalizer", which may be null: NFC, NFD, NFKC, NFKD, Prepend, Replace, or a Sequence of them. Refuses
  // others by name.
  static absl::StatusOr<Normalizer> Read(const JsonPart& part);

  bool empty() const { return steps_.empty(); }
  // Returns whether the normal form of a text is that of its lines, one after another.
  bool by_line() const;

  // Returns the normal form of `text`, which is `text` itself if nothing changes, else `*buffer`. REQUIRES: `text` is
  // well-formed UTF-8.
  absl::StatusOr<absl::string_view> Normalize(absl::string_view text, std::string* buffer) const;

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
  };
  using Step = std::variant<Unicode, Prepend, Replace>;

  static absl::StatusOr<Step> ReadStep(const JsonPart& part);

  std::vector<Step> steps_;
};

// Returns `text` with each match replaced.
absl::StatusOr<std::string> ReplaceMatches(const Regex& pattern, absl::string_view content, absl::string_view text);

}  // namespace shale
