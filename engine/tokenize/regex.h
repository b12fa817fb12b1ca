// Regex: a regular expression of a tokenizer.json, matched by PCRE2.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/text_budget.h"

namespace shale {

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
