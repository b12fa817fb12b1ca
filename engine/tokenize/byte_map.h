// Maps each byte to the printable character that stands for it in byte-level vocabularies, and back.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Returns the character of a byte: itself for ! to ~, U+00A1 to U+00AC and U+00AE to U+00FF; U+0100 and following for
// the others, in order.
uint32_t CharacterOfByte(uint8_t byte);

// Returns the bytes as characters, in UTF-8.
std::string BytesToCharacters(absl::string_view bytes);

// Sets `*bytes` to the bytes that `characters`, which is UTF-8, stand for. Returns false if one stands for none.
bool CharactersToBytes(absl::string_view characters, std::string* bytes);

}  // namespace shale
