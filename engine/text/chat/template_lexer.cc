#include "engine/text/chat/template_lexer.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

using TokenKind = TemplateToken::Kind;

// Longer operators stand before those that they begin with.
constexpr absl::string_view kOperators[] = {"==", "!=", "<=", ">=", "//", "**", "(", ")", "[", "]", "{", "}", ",",
                                            ".",  ":",  "|",  "=",  "<",  ">",  "+", "-", "*", "/", "%", "~"};

bool IsNameStart(char c) { return absl::ascii_isalpha(c) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<TemplateToken>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = NextTag();
      const char kind = tag < source_.size() ? source_[tag + 1] : 0;
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : 0;
      AddData(tag, kind, sign);
      if (tag == source_.size()) break;
      MoveTo(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (kind == '#') {
        SHALE_RETURN_IF_ERROR(Comment());
      } else {
        SHALE_RETURN_IF_ERROR(Tag(kind));
      }
    }
    Add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("line ", line_, ": ", what));
  }
  void MoveTo(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    at_ = to;
  }
  TemplateToken& Add(TokenKind kind, absl::string_view text = "") {
    tokens_.push_back({.kind = kind, .text = std::string(text), .line = line_});
    return tokens_.back();
  }

  // Returns where the next tag begins, or the end.
  size_t NextTag() const {
    for (size_t at = source_.find('{', at_); at != absl::string_view::npos && at + 1 < source_.size();
         at = source_.find('{', at + 1)) {
      if (absl::StrContains("{%#", source_.substr(at + 1, 1))) return at;
    }
    return source_.size();
  }

  // Adds the text before a tag.
  void AddData(size_t tag, char kind, char sign) {
    absl::string_view data = source_.substr(at_, tag - at_);
    if (sign == '-') {
      data = absl::StripTrailingAsciiWhitespace(data);
    } else if ((kind == '%' || kind == '#') && sign != '+') {
      // Leaves out white space between the beginning of a line and the tag (lstrip_blocks).
      size_t end = data.size();
      while (end > 0 && (data[end - 1] == ' ' || data[end - 1] == '\t')) --end;
      const bool begins_line = end > 0 ? data[end - 1] == '\n' : at_ == 0 || source_[at_ - 1] == '\n';
      if (begins_line) data = data.substr(0, end);
    }
    if (strip_) data = absl::StripLeadingAsciiWhitespace(data);
    strip_ = false;
    if (!data.empty()) Add(TokenKind::kData, data);
    MoveTo(tag);
  }

  // Leaves out white space after a tag, and one line end if `trims_line` (trim_blocks). `sign` is the - or + before the
  // end of the tag, or 0.
  void AfterTag(char sign, bool trims_line) {
    strip_ = sign == '-';
    if (trims_line && sign == 0 && at_ < source_.size() && source_[at_] == '\n') MoveTo(at_ + 1);
  }

  absl::Status Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == absl::string_view::npos) return Error("a comment does not end");
    const char before = end > at_ ? source_[end - 1] : 0;
    MoveTo(end + 2);
    AfterTag(before == '-' || before == '+' ? before : 0, /*trims_line=*/true);
    return absl::OkStatus();
  }

  absl::Status Tag(char kind) {
    const absl::string_view end = kind == '%' ? "%}" : "}}";
    Add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin);
    int open = 0;  // Braces of mappings that are open, whose closing braces do not end the tag.
    while (true) {
      while (at_ < source_.size() && absl::ascii_isspace(source_[at_])) MoveTo(at_ + 1);
      if (at_ == source_.size()) return Error(absl::StrCat("a tag does not end: ", end, " is missing"));
      const absl::string_view rest = source_.substr(at_);
      char sign = 0;
      if ((rest[0] == '-' || (rest[0] == '+' && kind == '%')) && absl::StartsWith(rest.substr(1), end)) sign = rest[0];
      if (open == 0 && absl::StartsWith(rest.substr(sign == 0 ? 0 : 1), end)) {
        Add(kind == '%' ? TokenKind::kBlockEnd : TokenKind::kVariableEnd);
        MoveTo(at_ + 2 + (sign == 0 ? 0 : 1));
        AfterTag(sign, kind == '%');
        return absl::OkStatus();
      }
      if (rest[0] == '{') ++open;
      if (rest[0] == '}') --open;
      SHALE_RETURN_IF_ERROR(AddToken(rest));
    }
  }

  // Adds the next token of a tag, with which `rest` begins.
  absl::Status AddToken(absl::string_view rest) {
    if (rest[0] == '\'' || rest[0] == '"') return String(rest);
    size_t size = 0;
    if (IsNameStart(rest[0])) {
      while (size < rest.size() && (IsNameStart(rest[size]) || absl::ascii_isdigit(rest[size]))) ++size;
      Add(TokenKind::kName, rest.substr(0, size));
    } else if (absl::ascii_isdigit(rest[0])) {
      while (size < rest.size() && absl::ascii_isdigit(rest[size])) ++size;
      const bool is_float = size + 1 < rest.size() && rest[size] == '.' && absl::ascii_isdigit(rest[size + 1]);
      if (is_float) return Error("numbers with a fraction are not supported");
      TemplateToken& token = Add(TokenKind::kInteger, rest.substr(0, size));
      if (!absl::SimpleAtoi(rest.substr(0, size), &token.number)) return Error("a number is too large");
    } else {
      const auto found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                      [&](absl::string_view sign) { return absl::StartsWith(rest, sign); });
      if (found == std::end(kOperators)) return Error(absl::StrCat("found ", Quoted(rest.substr(0, 1)), " in a tag"));
      size = found->size();
      Add(TokenKind::kOperator, *found);
    }
    MoveTo(at_ + size);
    return absl::OkStatus();
  }

  absl::Status String(absl::string_view rest) {
    std::string text;
    size_t at = 1;
    for (; at < rest.size() && rest[at] != rest[0]; ++at) {
      if (rest[at] != '\\') {
        text += rest[at];
        continue;
      }
      if (++at == rest.size()) break;
      switch (rest[at]) {
        case 'n': text += '\n'; break;
        case 't': text += '\t'; break;
        case 'r': text += '\r'; break;
        case '\\':
        case '\'':
        case '"': text += rest[at]; break;
        default: return Error(absl::StrCat("the escape \\", Quoted(rest.substr(at, 1)), " is not supported"));
      }
    }
    if (at >= rest.size()) return Error("a string does not end");
    Add(TokenKind::kString, text);
    MoveTo(at_ + at + 1);
    return absl::OkStatus();
  }

  absl::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool strip_ = false;  // Whether to remove white space at the beginning of the text that follows.
  std::vector<TemplateToken> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateToken>> LexTemplate(absl::string_view source) {
  const std::string lines = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  absl::string_view text = lines;
  absl::ConsumeSuffix(&text, "\n");  // Jinja leaves out one line end at the end.
  return Lexer(text).Run();
}

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
