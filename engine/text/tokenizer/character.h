// Characters of UTF-8 text, and the classes by which tokenizers split it. Also maps each byte to the printable
// character that stands for it in byte-level vocabularies, and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

// Classes of a character. A character may be in several.
enum CharacterClass : uint8_t {
  kLetter = 1,       // \p{L}
  kNumber = 2,       // \p{N}
  kSpace = 4,        // \s
  kPunctuation = 8,  // What the pre-tokenizer Punctuation splits at.
  kWord = 16,        // Part of a word, which added tokens with single_word must not touch.
  kNotPlain = 32,    // NFC may change it, move it, or combine it with the character before it.
};

// The classes of all characters. They are those of the tokenizers library, whatever Unicode version other libraries
// have. Immutable.
class CharacterClasses {
 public:
  static const CharacterClasses& Get();

  // Returns the classes of `code`, combined by |. REQUIRES: code < 0x110000.
  uint8_t Of(uint32_t code) const { return classes_[(static_cast<uint32_t>(pages_[code >> 8]) << 8) | (code & 0xFF)]; }

 private:
  CharacterClasses();

  uint16_t pages_[0x1100];  // Equal pages of 256 characters are kept once.
  std::string classes_;
};

// Returns the character at `*at` and moves `*at` behind it. REQUIRES: `at` points into well-formed UTF-8.
inline uint32_t NextCharacter(const char** at) {
  const auto* byte = reinterpret_cast<const uint8_t*>(*at);
  if (byte[0] < 0x80) {
    *at += 1;
    return byte[0];
  }
  if (byte[0] < 0xE0) {
    *at += 2;
    return (byte[0] & 0x1Fu) << 6 | (byte[1] & 0x3Fu);
  }
  if (byte[0] < 0xF0) {
    *at += 3;
    return (byte[0] & 0x0Fu) << 12 | (byte[1] & 0x3Fu) << 6 | (byte[2] & 0x3Fu);
  }
  *at += 4;
  return (byte[0] & 0x07u) << 18 | (byte[1] & 0x3Fu) << 12 | (byte[2] & 0x3Fu) << 6 | (byte[3] & 0x3Fu);
}

// Returns whether `text`, which must be well-formed UTF-8, is one character.
bool IsOneCharacter(absl::string_view text);

// Returns whether Python's str.isspace holds, so that strip() removes the character.
bool IsPythonSpace(uint32_t code);

// Returns the last character of `text`, which must be well-formed UTF-8 and not empty.
uint32_t LastCharacter(absl::string_view text);

// Returns the characters of `text`, which must be well-formed UTF-8.
std::vector<absl::string_view> SplitCharacters(absl::string_view text);

// Appends the UTF-8 of `code`.
void AppendCharacter(uint32_t code, std::string* text);

// Replaces ill-formed UTF-8 by U+FFFD: one for each longest incomplete character, and one for each other byte that
// belongs to no character. Python's bytes.decode(errors="replace") and Rust's from_utf8_lossy return the same.
std::string ReplaceIllFormed(absl::string_view text);

// Returns the character of a byte: itself for ! to ~, U+00A1 to U+00AC and U+00AE to U+00FF; U+0100 and following for
// the others, in order.
uint32_t CharacterOfByte(uint8_t byte);

// Returns the bytes as characters, in UTF-8.
std::string BytesToCharacters(absl::string_view bytes);

// Sets `*bytes` to the bytes that `characters`, which is UTF-8, stand for. Returns false if one stands for none.
bool CharactersToBytes(absl::string_view characters, std::string* bytes);

// A set is written as its edges, ascending: the first character in it, the first that is not, the next that is, and so
// on. tests/parity/make_character_tables.py writes them.
extern const absl::Span<const uint32_t> kLetterEdges, kNumberEdges, kSpaceEdges, kPunctuationEdges, kWordEdges,
    kNotPlainEdges;

}  // namespace shale
