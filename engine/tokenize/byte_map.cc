#include "engine/tokenize/byte_map.h"

#include <array>

#include "engine/tokenize/character.h"

namespace shale {
namespace {

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
