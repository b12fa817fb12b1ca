// Regex: a regular expression of a tokenizer.json, matched by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// A part of a text: bytes [begin, end), and whether it is a match or lies between matches.
struct Match {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

// Immutable and cheap to copy. Safe for concurrent use by multiple threads.
class Regex {
 public:
  // Compiles an expression in the syntax of the tokenizers library, which is that of Oniguruma. Returns InvalidArgument
  // for one that PCRE2 does not accept or that can match the empty text, and for whatever the two may understand
  // differently: anchors, \w, \h, scripts, sets in sets, {n,m}+ and others. \s is what it is in the library; \p{...}
  // is that of PCRE2, whose Unicode version may be older.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  // Compiles an expression that matches `text` itself.
  static absl::StatusOr<Regex> Literal(absl::string_view text);

  // Appends the parts of `text` in order: matches, and what lies between them. Returns ResourceExhausted if PCRE2 gives
  // up. REQUIRES: `text` is well-formed UTF-8.
  absl::Status Find(absl::string_view text, std::vector<Match>* parts) const;

 private:
  Regex() = default;
  static absl::StatusOr<Regex> CompileTranslated(absl::string_view shown, const std::string& pattern);

  std::string pattern_;
  std::shared_ptr<const void> code_;
};

}  // namespace shale
