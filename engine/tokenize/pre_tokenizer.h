// PreTokenizer: how a tokenizer.json splits a text into pieces, which the model then encodes one by one.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenize/part.h"
#include "engine/tokenize/scanner.h"

namespace shale {

// What becomes of the matches of a split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Pieces of a text, and whether the first one stands at the beginning of a document.
struct Pieces {
  std::vector<std::string> texts;
  bool at_start = false;
};

// Immutable. Safe for concurrent use by multiple threads.
class PreTokenizer {
 public:
  // Reads "pre_tokenizer", which may be null: ByteLevel, Split, Digits, Punctuation, Metaspace, or a Sequence of them.
  // Refuses others by name.
  static absl::StatusOr<PreTokenizer> Read(const JsonPart& part);

  // Returns whether pieces are bytes, as the model then has to read them.
  bool byte_level() const { return byte_level_; }
  // Returns the scanner that finds all pieces, end by end, or null if there is none.
  Scanner scanner() const { return scanner_; }
  // Returns whether a text may be cut behind any line end between two characters that are not white space, with the
  // same pieces.
  bool by_line() const { return scanner_ != nullptr; }

  // Splits the pieces further. REQUIRES: they are well-formed UTF-8. If byte_level(), they may not be afterwards.
  absl::Status Split(Pieces* pieces) const;

 private:
  struct ByteLevel {  // Also maps bytes to characters, for the steps that follow.
    bool add_prefix_space = false;
    Scanner scanner = nullptr;  // Null: does not split.
  };
  struct SplitAt {
    Regex pattern;
    Scanner scanner = nullptr;  // If not null, finds the same matches.
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
  };
  struct SplitAtClass {
    uint8_t classes = 0;
    SplitBehavior behavior = SplitBehavior::kIsolated;
  };
  struct Metaspace {
    enum class Prepend { kAlways, kFirst, kNever };
    std::string replacement;
    Prepend prepend = Prepend::kAlways;
    bool split = true;
  };
  using Step = std::variant<ByteLevel, SplitAt, SplitAtClass, Metaspace>;

  static absl::StatusOr<Step> ReadStep(const JsonPart& part);
  static absl::Status Apply(const Step& step, const std::string& text, bool at_start, std::vector<std::string>* out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  Scanner scanner_ = nullptr;
};

}  // namespace shale
