// Decoder: how a tokenizer.json turns tokens back into text.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/utf8_stream.h"
#include "engine/tokenize/part.h"

namespace shale {

// Immutable. Safe for concurrent use by multiple threads.
class Decoder {
 public:
  // Reads "decoder": ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, or a Sequence of them. Refuses others by
  // name. If it is null, tokens are joined by spaces.
  static absl::StatusOr<Decoder> Read(const JsonPart& part);

  // When ByteFallback gives out the characters of byte tokens that follow each other. The tokenizers library looks at
  // all of them together: if they are not well-formed, each becomes U+FFFD.
  enum class Bytes {
    kTogether,  // As the library does.
    kEarly,     // As soon as a character is complete. Differs only if a later byte is ill-formed.
  };

  // Decodes one sequence of tokens, one after another. Used by one thread. Borrows the decoder.
  class Stream {
   public:
    Stream(const Decoder& decoder, Bytes bytes) : decoder_(&decoder), bytes_(bytes), states_(decoder.steps_.size()) {}

    // Takes the next token as it is written in the vocabulary. Returns the text that is complete now: well-formed
    // UTF-8, often empty.
    std::string Push(absl::string_view token);
    // Ends the sequence. Returns what is left.
    std::string Finish();

   private:
    struct State {
      bool first = true;        // No token has come.
      std::string pending;      // Bytes, or text that may have to be stripped.
      bool ill_formed = false;  // The pending byte tokens are not text.
      int64_t stripped = 0;     // Characters stripped at the beginning.
      Utf8Stream bytes;
    };

    // Gives a piece to a step, which gives what follows from it to the next ones. Appends to `*out` behind the last.
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
  struct Join {};  // By spaces.
  struct Strip {
    std::string content;
    int64_t start = 0, stop = 0;
    bool fused = false;  // All tokens are one.
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
