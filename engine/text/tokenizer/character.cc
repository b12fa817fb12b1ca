#include "engine/text/tokenizer/character.h"

#include <array>
#include <map>

#include "absl/types/span.h"
#include "engine/strings/utf8.h"

namespace shale {
namespace {

constexpr uint32_t kCodes = 0x110000;

void Mark(absl::Span<const uint32_t> edges, CharacterClass bit, std::string& all) {
  for (size_t i = 0; i + 1 < edges.size(); i += 2) {
    for (uint32_t code = edges[i]; code < edges[i + 1]; ++code) all[code] = static_cast<char>(all[code] | bit);
  }
}

struct Maps {
  std::array<uint32_t, 256> character = {};
  std::array<int, 0x144> byte = {};  // -1: none.

  Maps() {
    byte.fill(-1);
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool same = (b >= '!' && b <= '~') || (b >= 0xA1 && b != 0xAD);
      character[b] = same ? b : next++;
      byte[character[b]] = b;
    }
  }
};

const Maps& GetMaps() {
  static const Maps& maps = *new Maps;
  return maps;
}

}  // namespace

CharacterClasses::CharacterClasses() {
  std::string all(kCodes, '\0');
  Mark(kLetterEdges, kLetter, all);
  Mark(kNumberEdges, kNumber, all);
  Mark(kSpaceEdges, kSpace, all);
  Mark(kPunctuationEdges, kPunctuation, all);
  Mark(kWordEdges, kWord, all);
  Mark(kNotPlainEdges, kNotPlain, all);
  std::map<std::string, uint16_t> seen;
  for (uint32_t page = 0; page < kCodes / 256; ++page) {
    const auto [found, fresh] = seen.emplace(all.substr(page * 256, 256), seen.size());
    pages_[page] = found->second;
    if (fresh) classes_ += found->first;
  }
}

const CharacterClasses& CharacterClasses::Get() {
  static const CharacterClasses& classes = *new CharacterClasses;
  return classes;
}

bool IsOneCharacter(absl::string_view text) {
  const char* at = text.data();
  return !text.empty() && (NextCharacter(&at), at == text.data() + text.size());
}

bool IsPythonSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

uint32_t LastCharacter(absl::string_view text) {
  const char* at = text.data() + text.size() - 1;
  while ((static_cast<uint8_t>(*at) & 0xC0) == 0x80) --at;
  return NextCharacter(&at);
}

std::vector<absl::string_view> SplitCharacters(absl::string_view text) {
  std::vector<absl::string_view> all;
  for (const char* at = text.data(); at < text.data() + text.size();) {
    const char* begin = at;
    NextCharacter(&at);
    all.emplace_back(begin, at - begin);
  }
  return all;
}

void AppendCharacter(uint32_t code, std::string* text) {
  const auto add = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
    }
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

std::string ReplaceIllFormed(absl::string_view text) {
  std::string result;
  while (!text.empty()) {
    Utf8Validator validator;
    if (validator.Feed(text) && validator.Finish()) break;
    size_t length = validator.error_offset();
    result.append(text.data(), length);
    result += "\xEF\xBF\xBD";
    text.remove_prefix(length);
    // Skips the longest prefix of a character that stands here, at least one byte.
    for (length = 1; length < text.size(); ++length) {
      Utf8Validator prefix;
      if (!prefix.Feed(text.substr(0, length + 1))) break;
    }
    Utf8Validator first;
    if (!first.Feed(text.substr(0, 1))) length = 1;
    text.remove_prefix(length);
  }
  result.append(text.data(), text.size());
  return result;
}

uint32_t CharacterOfByte(uint8_t byte) { return GetMaps().character[byte]; }

std::string BytesToCharacters(absl::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendCharacter(CharacterOfByte(static_cast<uint8_t>(byte)), &text);
  return text;
}

bool CharactersToBytes(absl::string_view characters, std::string* bytes) {
  const Maps& maps = GetMaps();
  bytes->clear();
  const char* at = characters.data();
  const char* end = at + characters.size();
  while (at < end) {
    const uint32_t code = NextCharacter(&at);
    if (code >= maps.byte.size() || maps.byte[code] < 0) return false;
    bytes->push_back(static_cast<char>(maps.byte[code]));
  }
  return true;
}

}  // namespace shale
