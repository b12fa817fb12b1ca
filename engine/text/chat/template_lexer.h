// Cuts a chat template into text and the tokens of its tags. TemplateCursor walks over the tokens, for the parsers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

struct TemplateToken {
  enum class Kind {
    kData,           // Text between tags.
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,
    kInteger,
    kOperator,
    kEnd,  // Of the template.
  };
  Kind kind = Kind::kEnd;
  std::string text;  // The text of the token. A kString has neither quotes nor escapes.
  int64_t number = 0;
  int line = 1;
};

// Returns the tokens of a template; the last one is kEnd. Removes comments, and white space around tags as transformers
// tells Jinja to (trim_blocks, lstrip_blocks). Returns InvalidArgument with the line.
absl::StatusOr<std::vector<TemplateToken>> LexTemplate(absl::string_view source);

// Used by one thread.
class TemplateCursor {
 public:
  // Levels of statements and expressions in each other, and operators in a row. Parsers and the renderer use recursion.
  static constexpr int kMaxDepth = 100;

  // REQUIRES: the last token is kEnd.
  explicit TemplateCursor(std::vector<TemplateToken> tokens) : tokens_(std::move(tokens)) {}

  // Returns the token to read next.
  const TemplateToken& Peek() const { return tokens_[at_]; }
  // Returns the token after that one, or kEnd.
  const TemplateToken& PeekSecond() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  // Reads a token. Stays at kEnd.
  const TemplateToken& Next();

  // Returns whether the next token is this operator, or this word.
  bool Is(absl::string_view sign) const;
  bool IsWord(absl::string_view word) const;
  // Reads the operator or the word, and returns true, if it comes next.
  bool Take(absl::string_view sign);
  bool TakeWord(absl::string_view word);
  // Reads a token of this kind, this operator, or a name. Returns an error if something else comes next.
  absl::Status Expect(TemplateToken::Kind kind);
  absl::Status Expect(absl::string_view sign);
  absl::StatusOr<std::string> Name();

  // Returns InvalidArgument "line <line of the next token>: <what>".
  absl::Status Error(absl::string_view what) const;
  // Returns the error "found <the next token>; wanted <what>".
  absl::Status Wanted(absl::string_view what) const;
  // Goes one level deeper; returns `error` if that is too deep. A parse that failed need not go up again.
  absl::Status Down(absl::string_view error);
  void Up() { --depth_; }

 private:
  const std::vector<TemplateToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace shale
