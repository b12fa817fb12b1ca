#include "engine/tokenize/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"
#include "kernels/check.h"

namespace shale {
namespace {

// The characters that \s matches in Oniguruma. The \s of PCRE2 also matches U+180E.
constexpr absl::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr absl::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                             "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                             "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

bool IsCategory(absl::string_view name) {
  for (absl::string_view category : kCategories) {
    if (category == name) return true;
  }
  return false;
}

// Translates an expression from Oniguruma's Ruby syntax to that of PCRE2. Refuses what may mean something else there.
class Translator {
 public:
  explicit Translator(absl::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    while (!rest_.empty()) SHALE_RETURN_IF_ERROR(in_set_ ? InSet() : Outside());
    return std::move(out_);
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(what), " is not supported in regular expressions"));
  }
  // Copies `n` bytes.
  absl::Status Copy(size_t n) {
    absl::StrAppend(&out_, rest_.substr(0, n));
    rest_.remove_prefix(std::min(n, rest_.size()));
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return Refuse("\\");
    const char c = rest_[1];
    if (c == 'p' || c == 'P') {
      const size_t close = rest_.find('}');
      if (close == absl::string_view::npos || rest_.substr(2, 1) != "{" || !IsCategory(rest_.substr(3, close - 3))) {
        return Refuse(rest_.substr(0, std::min<size_t>(12, close == absl::string_view::npos ? 12 : close + 1)));
      }
      return Copy(close + 1);
    }
    if (c == 's' || (c == 'S' && !in_set_)) {
      absl::StrAppend(&out_, in_set_ ? "" : c == 's' ? "[" : "[^", kSpaces, in_set_ ? "" : "]");
      rest_.remove_prefix(2);
      return absl::OkStatus();
    }
    if (absl::StrContains("rnt", c) || (c > ' ' && c < 0x7F && !isalnum(static_cast<unsigned char>(c)))) {
      return Copy(2);
    }
    return Refuse(rest_.substr(0, 2));
  }

  absl::Status InSet() {
    const char c = rest_[0];
    if (c == '\\') return Escape();
    if (c == '[' || absl::StartsWith(rest_, "&&")) return Refuse(rest_.substr(0, c == '[' ? 1 : 2));
    in_set_ = c != ']';
    return Copy(1);
  }

  absl::Status Outside() {
    const char c = rest_[0];
    if (c == '\\') return Escape();
    if (c == '^' || c == '$' || c == '.') return Refuse(rest_.substr(0, 1));
    if (c == '[') {
      in_set_ = true;
      SHALE_RETURN_IF_ERROR(Copy(absl::StartsWith(rest_, "[^") ? 2 : 1));
      return absl::StartsWith(rest_, "]") ? Refuse("[]") : absl::OkStatus();
    }
    if (c == '(' && absl::StartsWith(rest_, "(?")) {
      for (absl::string_view open : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
        if (absl::StartsWith(rest_, open)) return Copy(open.size());
      }
      return Refuse(rest_.substr(0, 3));
    }
    if (c == '{') {
      const size_t close = rest_.find('}');
      if (close == absl::string_view::npos ||
          rest_.substr(1, close - 1).find_first_not_of("0123456789,") != absl::string_view::npos ||
          rest_.substr(1, 1) == "," || close == 1) {
        return Refuse(rest_.substr(0, 5));
      }
      // In Ruby's syntax a sign after the brace is another repetition. In PCRE2 it changes the first one.
      if (close + 1 < rest_.size() && absl::StrContains("+?*{", rest_[close + 1]))
        return Refuse(rest_.substr(0, close + 2));
      return Copy(close + 1);
    }
    if (c == '#' || c == '\0') return Refuse(rest_.substr(0, 1));
    return Copy(1);
  }

  absl::string_view rest_;
  bool in_set_ = false;
  std::string out_;
};

pcre2_code* CodeOf(const void* code) { return const_cast<pcre2_code*>(static_cast<const pcre2_code*>(code)); }

}  // namespace

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  absl::StatusOr<std::string> translated = Translator(pattern).Translate();
  if (!translated.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(pattern), ": ", translated.status().message()));
  }
  return CompileTranslated(pattern, *translated);
}

absl::StatusOr<Regex> Regex::Literal(absl::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (absl::StrContains("\\^$.[]|()?*+{}-#", c)) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return CompileTranslated(text, pattern);
}

absl::StatusOr<Regex> Regex::CompileTranslated(absl::string_view shown, const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(shown), " is not a regular expression: ", reinterpret_cast<const char*>(message)));
  }
  Regex regex;
  regex.pattern_ = std::string(shown);
  regex.code_ = std::shared_ptr<const void>(code, [](const void* p) { pcre2_code_free(CodeOf(p)); });
  uint32_t empty = 0;
  pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(shown), " is a regular expression that can match the empty text"));
  }
  // Where just-in-time compilation is not available, PCRE2 interprets.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

absl::Status Regex::Find(absl::string_view text, std::vector<Match>* parts) const {
  pcre2_code* code = CodeOf(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  size_t at = 0;
  while (at < text.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK,
                                  data.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    if (found < 0 || bounds[1] <= bounds[0]) {
      return absl::ResourceExhaustedError(absl::StrCat("PCRE2 gives up on the expression ", Quoted(pattern_),
                                                       " (error ", found, ") in a text of ", text.size(), " bytes"));
    }
    if (bounds[0] > at) parts->push_back({at, bounds[0], false});
    parts->push_back({bounds[0], bounds[1], true});
    at = bounds[1];
  }
  if (at < text.size()) parts->push_back({at, text.size(), false});
  return absl::OkStatus();
}

}  // namespace shale
