// Turns generated tokens into text that can be shown as it comes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/generate/stop_strings.h"
#include "engine/text/utf8_stream.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// Returns the tokens of a text that is continued, behind what the tokenizer puts before each. Special tokens in it are
// tokens. An empty text stands for a newline.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const Tokenizer& tokenizer, absl::string_view text);

// The text of one sequence. Shows whole characters, and nothing from a stop string on. Used by one thread.
class GeneratedText {
 public:
  // Tokens are those of `tokenizer`, which may be null. Without one, they are bytes if `is_text`, and numbers
  // otherwise. `skip_special` leaves out special tokens that are generated.
  GeneratedText(const Tokenizer* tokenizer, bool is_text, bool skip_special, std::vector<std::string> stop_strings);

  // Adds a token of the prompt, to which no stop string applies. Returns its text, none for a special token that the
  // tokenizer put there and nobody wrote.
  std::string PushPrompt(int32_t token, bool written = true);
  // Adds a generated token, and returns what can be shown now.
  std::string Push(int32_t token);
  // Returns what was held back.
  std::string Finish();
  bool stopped() const { return stops_.stopped(); }

 private:
  // Returns the text of a token that no stop string has seen.
  std::string TextOf(int32_t token);

  const bool is_text_, skip_special_;
  std::optional<TokenStream> tokens_;
  Utf8Stream bytes_;
  StopStrings stops_;
};

}  // namespace shale
