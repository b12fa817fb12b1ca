// Tokenizer: the tokenizer.json of a Hugging Face folder. Encoder turns text into tokens, TokenStream tokens into text.
//
// Both give what the tokenizers library gives. Parts that are not known, and settings that would change a result, are
// refused by name when the tokenizer is read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/added_tokens.h"
#include "engine/tokenize/bpe_model.h"
#include "engine/tokenize/decoder.h"
#include "engine/tokenize/normalizer.h"
#include "engine/tokenize/pre_tokenizer.h"
#include "engine/tokenize/word_cache.h"

namespace shale {

// A handle that is cheap to copy. Immutable, and safe for concurrent use by multiple threads.
class Tokenizer {
 public:
  // Reads `tokenizer.json` in a folder, or the file at `path`. Returns the errors of ReadFile, and InvalidArgument with
  // file, part and what was found.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);
  // Does the same for the text of a tokenizer.json.
  static absl::StatusOr<Tokenizer> FromJson(absl::string_view json);

  // Returns one more than the largest token.
  int64_t vocabulary() const { return parts_->vocabulary; }
  // Returns the token that is written like this in the file, or -1: "<|endoftext|>".
  int32_t Find(absl::string_view written) const;
  // Returns the tokens that the file puts before and behind every document (TemplateProcessing).
  const std::vector<int32_t>& prefix() const { return parts_->prefix; }
  const std::vector<int32_t>& suffix() const { return parts_->suffix; }
  // Returns whether a text may be cut behind a line end that stands between two characters that are not white space:
  // the tokens of the parts, one after another, are then those of the text.
  bool by_line() const;

  // Returns the text of `tokens`. Leaves out numbers that are no token, and special tokens if told to.
  std::string Decode(const std::vector<int32_t>& tokens, bool skip_special) const;

 private:
  friend class Encoder;
  friend class TokenStream;

  struct Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    BpeModel model;
    AddedTokens added;
    Decoder decoder;
    std::vector<int32_t> prefix, suffix;
    int64_t vocabulary = 0;
  };

  // Returns the token as its decoder reads it, or null if it is to be left out.
  const std::string* Shown(int32_t token, bool skip_special) const;

  std::shared_ptr<const Parts> parts_;
};

// What becomes of a text besides its tokens.
struct EncodeOptions {
  bool add_prefix_and_suffix = false;
  // Whether special tokens that stand in the text become their token. Otherwise they are text, as it should be for text
  // that anyone may have written.
  bool special_tokens_in_text = true;
};

// Encodes texts one after another, and remembers the tokens of words (WordCache). Used by one thread.
class Encoder {
 public:
  explicit Encoder(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // Appends the tokens of `text` to `*tokens`. Bytes that are not UTF-8 count as U+FFFD (ReplaceIllFormed). Returns
  // ResourceExhausted if a regular expression takes too long.
  absl::Status Encode(absl::string_view text, const EncodeOptions& options, std::vector<int32_t>* tokens);

 private:
  absl::Status EncodeSection(absl::string_view text, bool at_start, bool special, std::vector<int32_t>* tokens);
  absl::Status EncodeNormal(absl::string_view text, bool at_start, std::vector<int32_t>* tokens);
  void EncodePiece(absl::string_view piece, std::vector<int32_t>* tokens);

  Tokenizer tokenizer_;
  WordCache cache_;
  BpeModel::Scratch scratch_;
};

// Decodes tokens as they come. Used by one thread.
class TokenStream {
 public:
  TokenStream(Tokenizer tokenizer, bool skip_special, Decoder::Bytes bytes = Decoder::Bytes::kEarly);

  // Returns the text that is complete now. Never ends inside of a character.
  std::string Push(int32_t token);
  // Whether special tokens that follow are left out.
  void SkipSpecial(bool skip) { skip_special_ = skip; }
  std::string Finish() { return stream_.Finish(); }

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  Decoder::Stream stream_;
};

}  // namespace shale
