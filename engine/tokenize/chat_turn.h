// ChatTurn: what ends an answer in a conversation.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenize/chat_template.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

// What a template writes around what the assistant says.
struct ChatTurn {
  std::string before;      // Behind the generation prompt: often a space, which answers begin with too.
  std::string end;         // Without white space at its end. Empty: nothing ends a turn.
  int32_t end_token = -1;  // The token that `end` is; -1 if it is none.
};

// Returns that of a template. Returns InvalidArgument if the template cannot write a conversation.
absl::StatusOr<ChatTurn> FindTurn(const ChatTemplate& chat, const Tokenizer& tokenizer);

}  // namespace shale
