// Hashes of texts that are the same on every machine and in every version, so that files and runs may depend on them.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

// Returns the 64-bit FNV-1a hash of the bytes (Fowler, Noll and Vo, 1991). It tells texts apart but does not protect
// them: who wants two texts of one hash finds them.
constexpr uint64_t Fnv1a(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace shale
