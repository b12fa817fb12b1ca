// Tokenizer: the tokenizer.json of a Hugging Face folder. Encoder turns text into tokens, TokenStream tokens into text.
//
// Both return what the tokenizers library returns. Reading a tokenizer refuses, by name, parts that are not supported
// and settings that would change a result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/tokenizer/added_tokens.h"
#include "engine/text/tokenizer/bpe_model.h"
#include "engine/text/tokenizer/decoder.h"
#include "engine/text/tokenizer/normalizer.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "engine/text/tokenizer/regex.h"
#include "engine/text/tokenizer/tokenizer_folder.h"

namespace shale {

// A handle that is cheap to copy. Immutable, and safe for concurrent use by multiple threads.
class Tokenizer {
 public:
  // Reads a folder as AutoTokenizer.from_pretrained does (ReadFolderTokenizer), or a tokenizer.json at `path` as the
  // tokenizers library does. Returns the errors of ReadFile, and InvalidArgument with file, part and what was found.
  static absl::StatusOr<Tokenizer> Load(const std::string& path);
  // Reads the text of a tokenizer.json. Returns InvalidArgument with part and what was found.
  static absl::StatusOr<Tokenizer> FromJson(absl::string_view json);

  // Returns one more than the largest token id.
  int64_t vocabulary() const { return parts_->vocabulary; }
  // Returns the id of a token by its text in the file, such as "<|endoftext|>", or -1.
  int32_t Find(absl::string_view written) const;
  // Returns the special tokens that the folder names. Empty if the tokenizer was read from a file.
  const SpecialTokens& special_tokens() const { return *special_tokens_; }
  // Returns the id of a special token by its name, such as "eos_token", or -1.
  int32_t SpecialToken(absl::string_view name) const;
  // Return the tokens that the file puts before and after every document (TemplateProcessing).
  const std::vector<int32_t>& prefix() const { return parts_->prefix; }
  const std::vector<int32_t>& suffix() const { return parts_->suffix; }
  // Returns whether a text may be cut in two after a line end, if the characters around the line end are not white
  // space. The tokens of the first part and then the second part are those of the text.
  bool by_line() const;

  // Returns the special tokens that stand in `text`, as parts of it.
  std::vector<absl::string_view> SpecialTokensIn(absl::string_view text) const;

  // Returns the text of `tokens`. Leaves out ids that no token has, and special tokens if `skip_special`.
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

  static absl::StatusOr<Tokenizer> FromParsed(const Json& json);
  static absl::StatusOr<Tokenizer> LoadFolder(const std::string& folder);
  // Returns the text of a token for the decoder, or null to leave it out.
  const std::string* Shown(int32_t token, bool skip_special) const;

  std::shared_ptr<const Parts> parts_;
  std::shared_ptr<const SpecialTokens> special_tokens_ = std::make_shared<const SpecialTokens>();
};

struct EncodeOptions {
  bool add_prefix_and_suffix = false;  // Tokenizer::prefix and suffix.
  // Whether special tokens that stand in the text become tokens. Set it to false for text that anyone may have written,
  // so that they stay text.
  bool special_tokens_in_text = true;
  // Longer pieces of text that the tokenizer does not split are refused. Each byte of such a piece takes up to 24 bytes
  // of memory.
  int64_t largest_piece_bytes = int64_t{1} << 28;
};

// Encodes texts one after another, and remembers the tokens of words (WordCache). Used by one thread.
class Encoder {
 public:
  explicit Encoder(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  // Appends the tokens of `text` to `*tokens`. Replaces bytes that are not UTF-8 by U+FFFD (ReplaceIllFormed). Returns
  // ResourceExhausted if a piece is too long, or if the tokenizer takes more than its TextBudget, and the errors of
  // AddedTokens::Split.
  absl::Status Encode(absl::string_view text, const EncodeOptions& options, std::vector<int32_t>* tokens);

 private:
  absl::Status EncodeSection(absl::string_view text, bool at_start, const EncodeOptions& options, TextBudget& budget,
                             std::vector<int32_t>* tokens);
  absl::Status EncodeNormal(absl::string_view text, bool at_start, const EncodeOptions& options, TextBudget& budget,
                            std::vector<int32_t>* tokens);
  absl::Status EncodePiece(absl::string_view piece, const EncodeOptions& options, std::vector<int32_t>* tokens);

  Tokenizer tokenizer_;
  WordCache cache_;
  BpeModel::Scratch scratch_;
};

// Decodes tokens as they come. Used by one thread.
class TokenStream {
 public:
  TokenStream(Tokenizer tokenizer, bool skip_special, Decoder::Bytes bytes = Decoder::Bytes::kEarly);

  // Returns the text that is complete now, which never ends inside a character.
  std::string Push(int32_t token);
  // Sets whether to leave out the special tokens that follow.
  void SkipSpecial(bool skip) { skip_special_ = skip; }
  // Ends the tokens. Returns the rest of the text, with U+FFFD for an incomplete character.
  std::string Finish() { return stream_.Finish(); }

 private:
  Tokenizer tokenizer_;
  bool skip_special_;
  Decoder::Stream stream_;
};

}  // namespace shale
