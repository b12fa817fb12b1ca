// Says which tokens of a row count in the loss.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/tokenize/text_row.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// Extends `*counts` to all `tokens`: 1 for each that counts, 0 for the others. The tokens from `begin` on are those of
// the text of `row`, encoded with or without `special_tokens` in it. REQUIRES: counts->size() == begin.
//
// A turn counts from the first token that the text before it alone does not have, and ends by the same rule. If the
// template marks the turns (TextRow::marked), a token counts if any of its bytes lies in a turn. Returns
// InvalidArgument where a tokenizer does not tell which bytes a token at such a border has.
absl::Status AppendCounts(const TextRow& row, bool special_tokens, const Tokenizer& tokenizer, Encoder& encoder,
                          const std::vector<int32_t>& tokens, size_t begin, std::vector<uint8_t>* counts);

}  // namespace shale
