// BpeTrainer: makes a byte-level BPE vocabulary from text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace shale {

struct TrainedBpe {
  std::vector<std::string> tokens;                  // By number, as bytes: special tokens, the 256 bytes, merges.
  std::vector<std::pair<int32_t, int32_t>> merges;  // In order of rank.
};

// Counts of the words of a text: pieces, as a pre-tokenizer gives them.
using WordCounts = absl::flat_hash_map<std::string, int64_t>;

// Adds the words of a text, line by line, as the library's train_from_files does. `pattern` is one of those in
// engine/tokenize/scanner.h. REQUIRES: the text is well-formed UTF-8.
void CountWords(absl::string_view text, absl::string_view pattern, WordCounts* words);

// Merges the most frequent pair of neighboring tokens, again and again, until there are `vocabulary` tokens or no pair
// occurs `min_frequency` times. Of pairs that are equally frequent it takes the one with the smallest tokens. Gives the
// merges of the tokenizers library's BpeTrainer with `initial_alphabet=ByteLevel.alphabet()`. The counts of pairs are
// kept up to date, word by word; the time is about that of the sum of the lengths of the different words, times the
// merges of each.
TrainedBpe TrainBpe(const WordCounts& words, const std::vector<std::string>& special_tokens, int64_t vocabulary,
                    int64_t min_frequency);

// Returns the tokenizer.json of a trained vocabulary: `pattern` splits text into words, and special tokens are the
// first ones.
std::string TokenizerJson(const TrainedBpe& bpe, const std::vector<std::string>& special_tokens,
                          absl::string_view pattern);

}  // namespace shale
