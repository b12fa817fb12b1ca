// A conversation with a model, on a terminal or a pipe.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

struct ChatOptions {
  std::string system;     // The system message; empty: none.
  int64_t positions = 0;  // A conversation has fewer tokens than this, with the answer that begins.
  // What ends an answer, besides what the template writes behind one.
  std::vector<int32_t> stop_tokens;
  std::vector<std::string> stop_strings;
  // Continues a conversation, and calls emit(token) with each token as it is drawn, until that returns false.
  std::function<absl::Status(const std::vector<int32_t>& conversation, const std::function<bool(int32_t)>& emit)>
      generate;
  std::function<void()> before_message;         // Called before each message is read.
  std::function<void(absl::string_view)> show;  // Gets the text of the answers as it comes.
};

// Reads a message from each line of `in` and shows the answer, until `in` ends. The messages are made text by the chat
// template. What the template writes before an answer, such as a space, is not shown when the model writes it too. A
// conversation that becomes too long forgets its oldest turns; a message that is too long by itself is not answered,
// and `show` gets the reason. Returns InvalidArgument if the template cannot write a conversation, and the errors of
// `generate`.
absl::Status Chat(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatOptions& options, std::istream& in);

}  // namespace shale
