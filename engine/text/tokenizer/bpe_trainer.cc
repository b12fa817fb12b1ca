#include "engine/text/tokenizer/bpe_trainer.h"

#include <algorithm>

#include "engine/files/hugging_face/strict_json.h"
#include "engine/text/tokenizer/character.h"
#include "engine/text/tokenizer/pre_tokenizer.h"

namespace shale {
namespace {

using Pair = std::pair<int32_t, int32_t>;

// A word as tokens. Merges make it shorter in place.
struct Word {
  int64_t count = 0;
  size_t begin = 0;  // Where its tokens begin in Trainer::tokens_.
  int32_t size = 0;
};

// A pair in the heap. Its count may be out of date; Train compares it with counts_ when the pair comes to the top.
struct Candidate {
  int64_t count = 0;
  Pair pair;
  std::vector<uint32_t> words;  // Where the pair occurred when the candidate was made.

  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  Trainer(const WordCounts& words, const std::vector<std::string>& special_tokens) {
    for (const std::string& token : special_tokens) AddToken(token);
    // Bytes come in the order of the characters that stand for them.
    std::vector<int> bytes(256);
    for (int byte = 0; byte < 256; ++byte) bytes[byte] = byte;
    std::sort(bytes.begin(), bytes.end(), [](int a, int b) { return CharacterOfByte(a) < CharacterOfByte(b); });
    int32_t of_byte[256];
    for (const int byte : bytes) of_byte[byte] = AddToken(std::string(1, static_cast<char>(byte)));
    for (const auto& [text, count] : words) {
      words_.push_back({count, tokens_.size(), static_cast<int32_t>(text.size())});
      for (const char byte : text) tokens_.push_back(of_byte[static_cast<uint8_t>(byte)]);
    }
  }

  TrainedBpe Train(int64_t vocabulary, int64_t min_frequency) {
    for (uint32_t i = 0; i < words_.size(); ++i) {
      const Word& word = words_[i];
      for (int32_t k = 0; k + 1 < word.size; ++k) {
        Change(TokenAt(word, k), TokenAt(word, k + 1), word.count, i);
      }
    }
    PushFound();
    std::vector<Pair> merged;
    while (static_cast<int64_t>(names_.size()) < vocabulary && !heap_.empty()) {
      Candidate top = Pop();
      const int64_t count = counts_[top.pair];
      if (top.count != count) {
        top.count = count;
        Push(std::move(top));
        continue;
      }
      if (count < std::max<int64_t>(1, min_frequency)) break;
      const int32_t token = AddToken(names_[top.pair.first] + names_[top.pair.second]);
      merged.push_back(top.pair);
      for (const uint32_t word : top.words) MergeWord(word, top.pair, token);
      PushFound();
    }
    // A pair can come twice if two different pairs make the same token. Its last place counts, as in the library.
    TrainedBpe result{.tokens = names_};
    absl::flat_hash_map<Pair, size_t> last;
    for (size_t i = 0; i < merged.size(); ++i) last[merged[i]] = i;
    for (size_t i = 0; i < merged.size(); ++i) {
      if (last[merged[i]] == i) result.merges.push_back(merged[i]);
    }
    return result;
  }

 private:
  int32_t AddToken(const std::string& name) {
    const auto [found, fresh] = numbers_.emplace(name, static_cast<int32_t>(names_.size()));
    if (fresh) names_.push_back(name);
    return found->second;
  }
  int32_t& TokenAt(const Word& word, int32_t k) { return tokens_[word.begin + k]; }

  // Adds to the count of a pair in a word, and notes where it appears.
  void Change(int32_t left, int32_t right, int64_t count, uint32_t word) {
    counts_[{left, right}] += count;
    if (count < 0) return;
    std::vector<uint32_t>& where = found_[{left, right}];
    if (where.empty() || where.back() != word) where.push_back(word);
  }

  // Replaces every occurrence of a pair in a word by the token that it becomes.
  void MergeWord(uint32_t index, Pair pair, int32_t token) {
    Word& word = words_[index];
    int32_t out = 0;
    for (int32_t i = 0; i < word.size; ++i) {
      if (i + 1 == word.size || TokenAt(word, i) != pair.first || TokenAt(word, i + 1) != pair.second) {
        TokenAt(word, out++) = TokenAt(word, i);
        continue;
      }
      if (out > 0) {
        Change(TokenAt(word, out - 1), pair.first, -word.count, index);
        Change(TokenAt(word, out - 1), token, word.count, index);
      }
      if (i + 2 < word.size) {
        Change(pair.second, TokenAt(word, i + 2), -word.count, index);
        Change(token, TokenAt(word, i + 2), word.count, index);
      }
      TokenAt(word, out++) = token;
      ++i;
    }
    word.size = out;
  }

  // Pushes the pairs that appeared since the last call to the heap.
  void PushFound() {
    for (auto& [pair, words] : found_) {
      if (const int64_t count = counts_[pair]; count > 0) Push({count, pair, std::move(words)});
    }
    found_.clear();
  }
  void Push(Candidate candidate) {
    heap_.push_back(std::move(candidate));
    std::push_heap(heap_.begin(), heap_.end());
  }
  Candidate Pop() {
    std::pop_heap(heap_.begin(), heap_.end());
    Candidate top = std::move(heap_.back());
    heap_.pop_back();
    return top;
  }

  std::vector<std::string> names_;
  absl::flat_hash_map<std::string, int32_t> numbers_;
  std::vector<Word> words_;
  std::vector<int32_t> tokens_;
  absl::flat_hash_map<Pair, int64_t> counts_;
  absl::flat_hash_map<Pair, std::vector<uint32_t>> found_;  // Pairs that appeared since the last PushFound, and where.
  std::vector<Candidate> heap_;
};

// Returns a token as a byte-level vocabulary writes it. Special tokens are written as they are.
std::string Written(const TrainedBpe& bpe, int32_t token, size_t special_tokens) {
  const std::string& bytes = bpe.tokens[token];
  return static_cast<size_t>(token) < special_tokens ? bytes : BytesToCharacters(bytes);
}

}  // namespace

void CountWords(absl::string_view text, absl::string_view pattern, WordCounts* words) {
  const Scanner scanner = FindScanner(pattern);
  while (!text.empty()) {
    const size_t line_end = text.find('\n');
    const absl::string_view line = text.substr(0, line_end == absl::string_view::npos ? line_end : line_end + 1);
    for (const char* at = line.begin(); at < line.end();) {
      const char* next = scanner(at, line.end());
      ++(*words)[absl::string_view(at, next - at)];
      at = next;
    }
    text.remove_prefix(line.size());
  }
}

TrainedBpe TrainBpe(const WordCounts& words, const std::vector<std::string>& special_tokens, int64_t vocabulary,
                    int64_t min_frequency) {
  return Trainer(words, special_tokens).Train(vocabulary, min_frequency);
}

std::string TokenizerJson(const TrainedBpe& bpe, const std::vector<std::string>& special_tokens,
                          absl::string_view pattern) {
  const size_t special = special_tokens.size();
  Json vocabulary = Json::object(), merges = Json::array(), added = Json::array();
  for (size_t i = 0; i < bpe.tokens.size(); ++i) vocabulary[Written(bpe, i, special)] = i;
  for (const auto& [left, right] : bpe.merges) {
    merges.push_back({Written(bpe, left, special), Written(bpe, right, special)});
  }
  for (size_t i = 0; i < special; ++i) {
    added.push_back({{"id", i},
                     {"content", special_tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const auto byte_level = [](bool use_regex) {
    return Json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  };
  Json pre_tokenizer = byte_level(true);
  if (pattern != kGpt2Pattern) {
    const Json split = {
        {"type", "Split"}, {"pattern", {{"Regex", std::string(pattern)}}}, {"behavior", "Isolated"}, {"invert", false}};
    pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
  }
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"ignore_merges", false},
                      {"vocab", vocabulary},
                      {"merges", merges}};
  const Json file = {{"version", "1.0"},          {"truncation", nullptr},       {"padding", nullptr},
                     {"added_tokens", added},     {"normalizer", nullptr},       {"pre_tokenizer", pre_tokenizer},
                     {"post_processor", nullptr}, {"decoder", byte_level(true)}, {"model", model}};
  return file.dump(1) + "\n";
}

}  // namespace shale
