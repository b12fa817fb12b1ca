// PreTokenizer: splits a text into pieces, as the "pre_tokenizer" of a tokenizer.json says. The model encodes each
// piece by itself. Scanner does the same as the regular expressions of GPT-2, Llama 3 and Qwen 2, with faster
// hand-written code.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/tokenizer/part.h"
#include "engine/text/tokenizer/regex.h"

namespace shale {

// The expressions that have a scanner. Their matches leave no gaps: every character belongs to a match.
inline constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

// Returns the end of the piece that begins at `begin`. REQUIRES: begin < end, and [begin, end) is well-formed UTF-8.
using Scanner = const char* (*)(const char* begin, const char* end);

// Returns the scanner of a pattern, or null if there is none.
Scanner FindScanner(absl::string_view pattern);

// What a split does with its matches. The names are those of the tokenizers library.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Pieces of a text.
struct Pieces {
  std::vector<std::string> texts;
  bool at_start = false;  // Whether the first piece is the beginning of a document.
};

// Immutable. Safe for concurrent use by multiple threads.
class PreTokenizer {
 public:
  // Reads "pre_tokenizer", which may be null: ByteLevel, Split, Digits, Punctuation, Metaspace, or a Sequence of them.
  // Refuses others by name.
  static absl::StatusOr<PreTokenizer> Read(const JsonPart& part);

  // Returns whether pieces are bytes, rather than UTF-8 (BpeModel::Read).
  bool byte_level() const { return byte_level_; }
  // Returns a scanner that finds the same pieces as Split, only faster, or null if there is none.
  Scanner scanner() const { return scanner_; }
  // Returns whether a text that is cut in two after a line end has the same pieces, if the characters around the line
  // end are not white space.
  bool by_line() const { return scanner_ != nullptr; }
  // Returns whether a mark comes before the first piece alone (Metaspace with prepend_scheme "first"), and whether
  // steps before that one split the text. The library then looks for the piece whose characters stood first in the text
  // before it was normalized.
  bool marks_start() const { return marks_start_; }
  bool marks_start_of_pieces() const { return marks_start_of_pieces_; }

  // Splits the pieces further. If byte_level(), the new pieces may be ill-formed UTF-8. Returns ResourceExhausted if
  // that takes more time or makes more pieces than the budget has. REQUIRES: the pieces are well-formed UTF-8.
  absl::Status Split(TextBudget& budget, Pieces* pieces) const;

 private:
  struct ByteLevel {  // Also replaces bytes by their characters (character.h), for the steps that follow.
    bool add_prefix_space = false;
    Scanner scanner = nullptr;  // Null if the step does not split.
  };
  struct SplitAt {
    Regex pattern;
    Scanner scanner = nullptr;  // Finds the same matches as `pattern`. May be null.
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
  // Returns whether the first piece that `step` makes is the one that begins the text.
  static bool KeepsStart(const Step& step);
  static absl::Status Apply(const Step& step, const std::string& text, bool at_start, TextBudget& budget,
                            std::vector<std::string>* out);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool marks_start_ = false, marks_start_of_pieces_ = false;
  Scanner scanner_ = nullptr;
};

}  // namespace shale
