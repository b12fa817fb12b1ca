#include "engine/tokenize/turn_counts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/tokenize/character.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Finds the tokens at the borders of turns.
class BorderFinder {
 public:
  BorderFinder(const TextRow& row, bool special_tokens, const Tokenizer& tokenizer, Encoder& encoder,
               const std::vector<int32_t>& tokens, size_t begin)
      : row_(row),
        special_tokens_(special_tokens),
        tokenizer_(tokenizer),
        encoder_(encoder),
        tokens_(tokens),
        begin_(begin) {}

  // Returns the index of the first token behind `place`, an offset in the text. `is_end` says whether a turn ends
  // there.
  absl::StatusOr<size_t> TokenAt(size_t place, bool is_end) {
    std::vector<int32_t> alone;
    SHALE_RETURN_IF_ERROR(encoder_.Encode(absl::string_view(row_.text).substr(0, place),
                                          {.special_tokens_in_text = special_tokens_}, &alone));
    const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(begin_);
    const auto differs = std::mismatch(first, tokens_.end(), alone.begin(), alone.end());
    if (!row_.marked || differs.second == alone.end()) return differs.first - tokens_.begin();
    return TokenWithBytes(place, is_end);
  }

 private:
  // Does the same if a token has bytes on both sides of `place`: that token belongs to the turn.
  absl::StatusOr<size_t> TokenWithBytes(size_t place, bool is_end) {
    if (ends_.empty()) SHALE_RETURN_IF_ERROR(FindEnds());
    const size_t at = std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin();  // The token with the byte.
    const size_t token_begin = at == 0 ? 0 : ends_[at - 1];
    if (token_begin == place) return begin_ + at;
    // Some tokenizers do not count white space at the beginning of a token as a part of it, in transformers.
    const std::string inside = row_.text.substr(token_begin, place - token_begin);
    const bool space = std::all_of(inside.begin(), inside.end(), [](char c) { return IsPythonSpace(c & 0x7F); });
    if (space && is_end) return Untold();
    return begin_ + at + (is_end ? 1 : 0);
  }

  // Finds where each token ends in the text.
  absl::Status FindEnds() {
    TokenStream stream(tokenizer_, /*skip_special=*/false);
    std::string text;
    for (size_t i = begin_; i < tokens_.size(); ++i) {
      text += stream.Push(tokens_[i]);
      ends_.push_back(text.size());
    }
    if (text + stream.Finish() == row_.text) return absl::OkStatus();
    return Untold();
  }
  static absl::Status Untold() {
    return absl::InvalidArgumentError(
        "the template marks a part of the text ({% generation %}) whose border lies within a token");
  }

  const TextRow& row_;
  const bool special_tokens_;
  const Tokenizer& tokenizer_;
  Encoder& encoder_;
  const std::vector<int32_t>& tokens_;
  const size_t begin_;
  std::vector<size_t> ends_;  // By token, where it ends in the text.
};

}  // namespace

absl::Status AppendCounts(const TextRow& row, bool special_tokens, const Tokenizer& tokenizer, Encoder& encoder,
                          const std::vector<int32_t>& tokens, size_t begin, std::vector<uint8_t>* counts) {
  BorderFinder borders(row, special_tokens, tokenizer, encoder, tokens, begin);
  for (size_t i = 0; i < row.turns.size(); ++i) {
    if (row.turns[i] == 0) continue;
    SHALE_ASSIGN_OR_RETURN(const size_t place, borders.TokenAt(row.turns[i], /*is_end=*/i % 2 == 1));
    counts->resize(std::max(place, counts->size()), i % 2);
  }
  counts->resize(tokens.size(), row.turns.size() % 2);
  return absl::OkStatus();
}

}  // namespace shale
