// Turns generated tokens into text that can be shown as it comes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/generate/stop_strings.h"
#include "engine/text/utf8_stream.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// The text of one sequence. Shows whole characters, and nothing from a stop string on. Used by one thread.
class GeneratedText {
 public:
  // Tokens are those of `tokenizer`, which may be null. Without one, they are bytes if `is_text`, and numbers
  // otherwise.
  GeneratedText(const Tokenizer* tokenizer, bool is_text, bool skip_special, std::vector<std::string> stop_strings);

  // Adds a token that no stop string applies to, of the prompt. Returns its text.
  std::string PushPrompt(int32_t token);
  // Adds a generated token, and returns what can be shown now.
  std::string Push(int32_t token);
  // Returns what was held back.
  std::string Finish();
  bool stopped() const { return stops_.stopped(); }

 private:
  const bool is_text_;
  std::optional<TokenStream> tokens_;
  Utf8Stream bytes_;
  StopStrings stops_;
};

}  // namespace shale
