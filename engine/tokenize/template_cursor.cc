#include "engine/tokenize/template_cursor.h"

#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"

namespace shale {

using TokenKind = TemplateToken::Kind;

const TemplateToken& TemplateCursor::Next() {
  const TemplateToken& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TemplateCursor::Is(absl::string_view sign) const {
  return Peek().kind == TokenKind::kOperator && Peek().text == sign;
}

bool TemplateCursor::IsWord(absl::string_view word) const {
  return Peek().kind == TokenKind::kName && Peek().text == word;
}

bool TemplateCursor::Take(absl::string_view sign) {
  if (!Is(sign)) return false;
  Next();
  return true;
}

bool TemplateCursor::TakeWord(absl::string_view word) {
  if (!IsWord(word)) return false;
  Next();
  return true;
}

absl::Status TemplateCursor::Expect(TokenKind kind) {
  if (Peek().kind != kind) return Wanted("the end of the tag");
  Next();
  return absl::OkStatus();
}

absl::Status TemplateCursor::Expect(absl::string_view sign) {
  return Take(sign) ? absl::OkStatus() : Wanted(Quoted(sign));
}

absl::StatusOr<std::string> TemplateCursor::Name() {
  if (Peek().kind != TokenKind::kName) return Wanted("a name");
  return Next().text;
}

absl::Status TemplateCursor::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("line ", Peek().line, ": ", what));
}

absl::Status TemplateCursor::Wanted(absl::string_view what) const {
  const std::string found = Peek().text.empty() ? "the end of the tag" : Quoted(Peek().text);
  return Error(absl::StrCat("found ", found, "; wanted ", what));
}

absl::Status TemplateCursor::Down(absl::string_view error) {
  return ++depth_ > kMaxDepth ? Error(error) : absl::OkStatus();
}

}  // namespace shale
