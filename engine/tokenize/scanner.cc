#include "engine/tokenize/scanner.h"

#include "engine/tokenize/character.h"

namespace shale {
namespace {

constexpr uint8_t kNotOther = kLetter | kNumber | kSpace;

// A character.
struct Seen {
  uint32_t code;
  uint8_t classes;   // CharacterClasses::Of(code)
  const char* next;  // Where the next character begins.
};

Seen See(const CharacterClasses& table, const char* at) {
  const char* next = at;
  const uint32_t code = NextCharacter(&next);
  return {code, table.Of(code), next};
}

// Returns the end of the run of characters that begins at `at` and whose classes within `mask` are exactly `wanted`.
const char* Run(const CharacterClasses& table, const char* at, const char* end, uint8_t mask, uint8_t wanted) {
  while (at < end) {
    const Seen seen = See(table, at);
    if ((seen.classes & mask) != wanted) break;
    at = seen.next;
  }
  return at;
}

// Matches \s+(?!\S)|\s+ at white space: all of a run but its last character, unless the run ends the text or is one
// character.
const char* Spaces(const CharacterClasses& table, const char* begin, const char* end) {
  const char* last = begin;
  const char* at = begin;
  while (at < end) {
    const Seen seen = See(table, at);
    if ((seen.classes & kSpace) == 0) return last == begin ? at : last;
    last = at;
    at = seen.next;
  }
  return at;
}

bool IsAny(char c, absl::string_view of) { return of.find(c) != absl::string_view::npos; }

// Returns the end of 's, 't, 're, 've, 'm, 'll or 'd at the apostrophe `begin`, or `begin` if it is none of them.
template <bool kAnyCase>
const char* Contraction(const char* begin, const char* end) {
  const auto letter = [&](int i) {
    const char c = begin + i < end ? begin[i] : '\0';
    return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = letter(1), second = letter(2);
  if (IsAny(first, "stmd")) return begin + 2;
  if ((IsAny(first, "rv") && second == 'e') || (first == 'l' && second == 'l')) return begin + 3;
  // U+017F, the long s, is an s in another case.
  if (kAnyCase && first == '\xC5' && second == '\xBF') return begin + 3;
  return begin;
}

const char* ScanGpt2(const char* begin, const char* end) {
  const CharacterClasses& table = CharacterClasses::Get();
  if (*begin == '\'') {
    if (const char* after = Contraction<false>(begin, end); after != begin) return after;
  }
  const char* at = begin + (*begin == ' ' && begin + 1 < end ? 1 : 0);
  const Seen seen = See(table, at);
  const uint8_t kind = seen.classes & kNotOther;
  if (kind == kSpace) return Spaces(table, begin, end);
  return Run(table, seen.next, end, kNotOther, kind);
}

template <int kDigits>
const char* ScanLlama3(const char* begin, const char* end) {
  const CharacterClasses& table = CharacterClasses::Get();
  if (*begin == '\'') {
    if (const char* after = Contraction<true>(begin, end); after != begin) return after;
  }
  const Seen first = See(table, begin);
  if (first.classes & kLetter) return Run(table, first.next, end, kLetter, kLetter);
  if (first.classes & kNumber) {
    const char* at = first.next;
    for (int i = 1; i < kDigits && at < end; ++i) {
      const Seen seen = See(table, at);
      if ((seen.classes & kNumber) == 0) break;
      at = seen.next;
    }
    return at;
  }
  const bool newline = first.code == '\n' || first.code == '\r';
  Seen second = {0, kSpace, first.next};
  if (first.next < end) second = See(table, first.next);
  if (!newline && (second.classes & kLetter)) return Run(table, second.next, end, kLetter, kLetter);
  if ((first.classes & kSpace) == 0 || (first.code == ' ' && (second.classes & kNotOther) == 0)) {
    const char* at = Run(table, first.next, end, kNotOther, 0);
    while (at < end && (*at == '\r' || *at == '\n')) ++at;
    return at;
  }
  // \s*[\r\n]+ ends behind the last line end of a run of white space.
  const char* behind_line = nullptr;
  for (const char* at = begin; at < end;) {
    const Seen seen = See(table, at);
    if ((seen.classes & kSpace) == 0) break;
    at = seen.next;
    if (seen.code == '\n' || seen.code == '\r') behind_line = at;
  }
  return behind_line != nullptr ? behind_line : Spaces(table, begin, end);
}

}  // namespace

Scanner FindScanner(absl::string_view pattern) {
  if (pattern == kGpt2Pattern) return ScanGpt2;
  if (pattern == kLlama3Pattern) return ScanLlama3<3>;
  if (pattern == kQwen2Pattern) return ScanLlama3<1>;
  return nullptr;
}

}  // namespace shale
