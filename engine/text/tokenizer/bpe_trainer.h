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
  std::vector<std::string> tokens;                  // By id, as bytes: special tokens, the 256 bytes, merges.
  std::vector<std::pair<int32_t, int32_t>> merges;  // In order of rank.
};

// How often each word occurs. A word is a piece that the pre-tokenizer makes.
using WordCounts = absl::flat_hash_map<std::string, int64_t>;

// Adds the words of a text. Splits each line by itself, as the library's train_from_files does. `pattern` is one of
// those in engine/text/tokenizer/pre_tokenizer.h. REQUIRES: the text is well-formed UTF-8.
void CountWords(absl::string_view text, absl::string_view pattern, WordCounts* words);

// Merges the most frequent pair of neighboring tokens, again and again, until there are `vocabulary` tokens or no pair
// occurs `min_frequency` times. Breaks ties by the smallest ids. Returns the merges that BpeTrainer of the tokenizers
// library finds with `initial_alphabet=ByteLevel.alphabet()`. A merge updates the counts of pairs in the words that
// hold its pair, so the time grows with the length of a word times its merges, summed over the different words.
TrainedBpe TrainBpe(const WordCounts& words, const std::vector<std::string>& special_tokens, int64_t vocabulary,
                    int64_t min_frequency);

// Returns the tokenizer.json of a trained vocabulary. `pattern` splits text into words. The special tokens have the
// first ids.
std::string TokenizerJson(const TrainedBpe& bpe, const std::vector<std::string>& special_tokens,
                          absl::string_view pattern);

}  // namespace shale
