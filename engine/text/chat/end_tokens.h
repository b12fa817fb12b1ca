// Finds what ends a text: the tokens that end a document or a generated text, and what ends an answer in a
// conversation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

// Returns the token that ends a document: the eos_token of the tokenizer, which was read from `folder`. If the
// tokenizer has none, returns the `eos_token_id` of generation_config.json, or else of config.json, or the first of
// them: what ends a text of the model. Returns -1 if nothing names one. Returns InvalidArgument for a file that cannot
// be understood and for a token that the tokenizer does not have.
absl::StatusOr<int32_t> DocumentEnd(const Tokenizer& tokenizer, const std::string& folder);

// Returns the tokens at which generation ends: `eos_token_id` of generation_config.json in a Hugging Face folder, or
// else of its config.json, and the eos_token of the tokenizer. Returns InvalidArgument for a file that cannot be
// understood.
absl::StatusOr<std::vector<int32_t>> EndTokens(const std::string& folder, const Tokenizer& tokenizer);

// What a template writes around what the assistant says.
struct ChatTurn {
  std::string before;      // Behind the generation prompt: often a space, which answers begin with too.
  std::string end;         // Without white space at its end. Empty: nothing ends a turn.
  int32_t end_token = -1;  // The token that `end` is; -1 if it is none.
};

// Returns that of a template. Returns InvalidArgument if the template cannot write a conversation.
absl::StatusOr<ChatTurn> FindTurn(const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace shale
