// The sets of characters by which the tokenizers library splits text. Use them through engine/tokenize/character.h.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace shale {

// A set is written as its edges, ascending: the first character in it, the first that is not, the next that is, and so
// on. tests/parity/make_character_tables.py writes them.
extern const absl::Span<const uint32_t> kLetterEdges, kNumberEdges, kSpaceEdges, kPunctuationEdges, kWordEdges,
    kNotPlainEdges;

}  // namespace shale
