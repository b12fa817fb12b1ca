// Turns generated tokens into text that can be shown as it comes. StopStrings ends a text where one of some strings
// begins.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/strings/utf8.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

// Holds back the end of a text while it may be the beginning of a stop string, which may come in several pieces. Used
// by one thread.
class StopStrings {
 public:
  // Empty strings count as none.
  explicit StopStrings(std::vector<std::string> strings);

  // Adds a piece of text. Returns what can be shown now: nothing of a stop string, and nothing behind it.
  std::string Push(absl::string_view piece);
  // Ends the text. Returns what was held back.
  std::string Finish();
  // Returns whether a stop string came. Push returns nothing afterwards.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool stopped_ = false;
};

// Returns the tokens of a text that a model is to continue. They begin with those that the tokenizer puts before every
// text. Special tokens that are written in the text become tokens. An empty text counts as a newline.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const Tokenizer& tokenizer, absl::string_view text);

// Turns the tokens of one sequence into text as they come. Returns whole characters only. The text ends where a stop
// string begins. Used by one thread.
class GeneratedText {
 public:
  // The tokens are those of `tokenizer`. If that is null, a token is a byte of text if `is_text`, and otherwise its
  // text is its number. `skip_special` leaves out special tokens that are generated.
  GeneratedText(const Tokenizer* tokenizer, bool is_text, bool skip_special, std::vector<std::string> stop_strings);

  // Adds a token of the prompt and returns its text. Stop strings do not apply to the prompt. A special token has no
  // text if the tokenizer added it, which `written` = false says.
  std::string PushPrompt(int32_t token, bool written = true);
  // Adds a generated token, and returns what can be shown now.
  std::string Push(int32_t token);
  // Returns what was held back.
  std::string Finish();
  bool stopped() const { return stops_.stopped(); }

 private:
  // Returns the text of a token, before stop strings are looked for.
  std::string TextOf(int32_t token);

  const bool is_text_, skip_special_;
  std::optional<TokenStream> tokens_;
  Utf8Stream bytes_;
  StopStrings stops_;
};

}  // namespace shale
