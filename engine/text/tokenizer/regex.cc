#include "engine/text/tokenizer/regex.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

// The processor time of this thread.
std::chrono::nanoseconds ThreadTime() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// The characters that \s matches in Oniguruma. The \s of PCRE2 also matches U+180E.
constexpr absl::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr absl::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                             "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                             "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

constexpr absl::string_view kScripts[] = {
    "Arabic",    "Armenian", "Bengali", "Cyrillic", "Devanagari", "Georgian", "Greek",  "Gujarati", "Gurmukhi",
    "Han",       "Hangul",   "Hebrew",  "Hiragana", "Kannada",    "Katakana", "Khmer",  "Lao",      "Latin",
    "Malayalam", "Myanmar",  "Sinhala", "Tamil",    "Telugu",     "Thai",     "Tibetan"};
// The characters of words, as Oniguruma sees them in a set. Outside of sets, it adds superscripts and fractions of
// Latin-1.
constexpr absl::string_view kWordsInSet = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr absl::string_view kWords = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// How many places a search looks at before the clock is looked at.
constexpr size_t kPlaces = 16;

bool IsOneOf(absl::Span<const absl::string_view> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsHex(absl::string_view text) {
  return !text.empty() && text.size() <= 6 &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return isxdigit(c); });
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

  // Writes `text` for the first `n` bytes.
  absl::Status Put(size_t n, absl::string_view text) {
    absl::StrAppend(&out_, text);
    rest_.remove_prefix(n);
    return absl::OkStatus();
  }
  // Writes an anchor for the first `n` bytes. Oniguruma refuses to repeat one.
  absl::Status PutAnchor(size_t n, absl::string_view text) {
    if (rest_.size() > n && absl::StrContains("+?*{", rest_[n])) return Refuse(rest_.substr(0, n + 1));
    return Put(n, text);
  }

  // Translates a property: \p{...}.
  absl::Status Property() {
    const size_t close = rest_.find('}');
    const bool closed = close != absl::string_view::npos && rest_.substr(2, 1) == "{";
    const absl::string_view name = closed ? rest_.substr(3, close - 3) : "";
    if (IsOneOf(kCategories, name)) return Copy(close + 1);
    // Without "sc:", PCRE2 also takes characters that a script shares with others.
    if (IsOneOf(kScripts, name)) return Put(close + 1, absl::StrCat(rest_.substr(0, 2), "{sc:", name, "}"));
    return Refuse(rest_.substr(0, std::min<size_t>(12, closed ? close + 1 : 12)));
  }

  // Writes a class of characters for the first two bytes.
  absl::Status PutClass(absl::string_view characters, bool negated) {
    if (in_set_ && negated) return Refuse(rest_.substr(0, 2));
    return Put(2, in_set_ ? std::string(characters) : absl::StrCat(negated ? "[^" : "[", characters, "]"));
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return Refuse("\\");
    const char c = rest_[1];
    switch (c) {
      case 'p':
      case 'P': return Property();
      case 's':
      case 'S': return PutClass(kSpaces, c == 'S');
      case 'w':
      case 'W': return PutClass(in_set_ ? kWordsInSet : kWords, c == 'W');
      case 'd': return Put(2, "\\p{Nd}");
      case 'D': return Put(2, "\\P{Nd}");
      case 'f': return Put(2, "\\x{c}");
      case 'v': return Put(2, "\\x{b}");
      case 'u':
        if (rest_.size() < 6 || !IsHex(rest_.substr(2, 4))) break;
        return Put(6, absl::StrCat("\\x{", rest_.substr(2, 4), "}"));
      case 'x': {
        const size_t close = rest_.find('}');
        if (close == absl::string_view::npos || rest_[2] != '{' || !IsHex(rest_.substr(3, close - 3))) break;
        return Copy(close + 1);
      }
      default: break;
    }
    if (!in_set_ && absl::StrContains("AzZ", c)) return PutAnchor(2, rest_.substr(0, 2));
    if (!in_set_ && (c == 'b' || c == 'B')) {
      const std::string in = absl::StrCat("[", kWords, "]");
      return PutAnchor(2, c == 'b' ? absl::StrCat("(?:(?<=", in, ")(?!", in, ")|(?<!", in, ")(?=", in, "))")
                                   : absl::StrCat("(?:(?<=", in, ")(?=", in, ")|(?<!", in, ")(?!", in, "))"));
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
    // Lines end at "\n" alone, and no line begins at the end of the text.
    if (c == '^') return PutAnchor(1, "(?:\\A|(?<=\\n)(?!\\z))");
    if (c == '$') return PutAnchor(1, "(?=\\n|\\z)");
    if (c == '.') return Put(1, "[^\\n]");
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

TextBudget::TextBudget(size_t bytes)
    : bytes_(bytes),
      most_bytes_(std::max(4 * bytes, std::min(12 * bytes + (size_t{1} << 16), size_t{1} << 28))),
      most_time_(std::chrono::seconds(2) + std::chrono::microseconds(bytes)),
      begin_(ThreadTime()),
      earliest_end_(std::chrono::steady_clock::now() + most_time_) {}

absl::Status TextBudget::CheckBytes(size_t bytes) const {
  if (bytes <= most_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the tokenizer makes more than ", most_bytes_,
                                                   " bytes of a text of ", bytes_, " bytes, the most that is allowed"));
}

absl::Status TextBudget::CheckPieces(size_t pieces, size_t bytes) const {
  const size_t most = 2 * bytes_ + (size_t{1} << 16);
  if (pieces <= most) return CheckBytes(bytes);
  return absl::ResourceExhaustedError(absl::StrCat("the tokenizer splits a text of ", bytes_, " bytes into more than ",
                                                   most, " pieces, the most that is allowed"));
}

absl::Status TextBudget::CheckClock() const {
  // A machine that is busy with other things refuses no tokenizer. The clock of a thread takes a system call to read,
  // the other clock does not.
  if (std::chrono::steady_clock::now() < earliest_end_ || ThreadTime() - begin_ < most_time_) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the tokenizer takes more than 2 seconds and a microsecond for each byte of a text of ", bytes_,
                   " bytes, the most that is allowed"));
}

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
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error, &offset, nullptr);
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

absl::Status Regex::ForEach(absl::string_view text, TextBudget& budget,
                            const std::function<absl::Status(const Match&)>& take) const {
  pcre2_code* code = CodeOf(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  // PCRE2 limits its work for each place where a match may begin, so a search looks at few such places at a time.
  // Expressions that are not hostile need one or two steps for each byte.
  std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(nullptr, pcre2_match_context_free);
  if (text.size() > kPlaces) {
    context.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(context.get(), std::min<size_t>(100'000 + 16 * text.size(), 10'000'000));
  }
  for (size_t at = 0, from = 0; at < text.size();) {
    SHALE_RETURN_IF_ERROR(budget.CheckTime());
    if (context != nullptr) pcre2_set_offset_limit(context.get(), from + kPlaces);
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) {
      from += kPlaces + 1;
      if (context == nullptr || from >= text.size()) return take({at, text.size(), false});
      SHALE_RETURN_IF_ERROR(budget.CheckClock());
      while (from < text.size() && (text[from] & 0xC0) == 0x80) ++from;  // To the beginning of a character.
      continue;
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    if (found < 0 || bounds[1] <= bounds[0]) {
      return absl::ResourceExhaustedError(absl::StrCat("PCRE2 gives up on the expression ", Quoted(pattern_),
                                                       " (error ", found, ") in a text of ", text.size(), " bytes"));
    }
    if (bounds[0] > at) SHALE_RETURN_IF_ERROR(take({at, bounds[0], false}));
    SHALE_RETURN_IF_ERROR(take({bounds[0], bounds[1], true}));
    at = from = bounds[1];
  }
  return absl::OkStatus();
}

absl::Status Regex::Find(absl::string_view text, TextBudget& budget, std::vector<Match>* parts) const {
  return ForEach(text, budget, [&](const Match& part) {
    parts->push_back(part);
    return absl::OkStatus();
  });
}

}  // namespace shale
