// Decoder: turns tokens back into text, as the "decoder" of a tokenizer.json says.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/strings/utf8.h"
#include "engine/text/tokenizer/part.h"

namespace shale {

// Immutable. Safe for concurrent use by multiple threads.
class Decoder {
 public:
  // Reads "decoder": ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, or a Sequence of them. Refuses others by
  // name. If it is null, tokens are joined by spaces.
  static absl::StatusOr<Decoder> Read(const JsonPart& part);

  // When ByteFallback outputs the characters of a run of byte tokens.
  enum class Bytes {
    kTogether,  // After the run. If the run is ill-formed, each byte becomes U+FFFD, as in the tokenizers library.
    kEarly,     // As soon as a character is complete. Differs from kTogether only if a later byte is ill-formed.
  };

  // Decodes one sequence of tokens, one after another. Used by one thread. Borrows the decoder.
  class Stream {
   public:
    Stream(const Decoder& decoder, Bytes bytes) : decoder_(&decoder), bytes_(bytes), states_(decoder.steps_.size()) {}

    // Takes the text of the next token in the vocabulary. Returns the text that is complete now, which is well-formed
    // UTF-8 and often empty.
    std::string Push(absl::string_view token);
    // Ends the sequence. Returns the rest of the text.
    std::string Finish();

   private:
    struct State {
      bool first = true;        // Whether no token has come yet.
      std::string pending;      // Bytes of an incomplete character, or text that may have to be stripped.
      bool ill_formed = false;  // Whether the run of byte tokens is not UTF-8.
      int64_t stripped = 0;     // Characters stripped at the beginning.
      Utf8Stream bytes;
    };

    // Passes a piece to a step, which passes its results to the next step. The last step appends to `*out`.
    void Feed(size_t step, absl::string_view piece, std::string* out);
    void End(size_t step, std::string* out);
    void FeedBytes(size_t step, uint8_t byte, std::string* out);
    void EndBytes(size_t step, std::string* out);
    void FeedStrip(size_t step, absl::string_view piece, std::string* out);

    const Decoder* decoder_;
    Bytes bytes_;
    std::vector<State> states_;
  };

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Fuse {};
  struct Join {};  // Puts a space between two tokens.
  struct Strip {
    std::string content;
    int64_t start = 0, stop = 0;
    bool fused = false;  // Whether the step strips the whole text, rather than each token.
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Metaspace {
    std::string replacement;
    bool prepends = true;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Fuse, Join, Strip, Replace, Metaspace>;

  static absl::StatusOr<Step> ReadStep(const JsonPart& part, bool fused);

  std::vector<Step> steps_;
};

}  // namespace shale
