#include "engine/tokenize/chat_turn.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns a turn without its end_token.
absl::StatusOr<ChatTurn> TextsOf(const ChatTemplate& chat) {
  const std::string answer = "answer", next = "next question";
  Conversation conversation = {.messages = {{"user", "question"}, {"assistant", answer}}};
  SHALE_ASSIGN_OR_RETURN(const ChatText text, chat.RenderWithTurns(conversation));
  ChatTurn turn;
  if (text.turns.empty()) return turn;
  const size_t end = text.turns.size() > 1 ? text.turns[1] : text.text.size();
  const size_t said = text.text.find(answer, text.turns[0]);
  if (said == std::string::npos || said >= end) return turn;
  turn.before = text.text.substr(text.turns[0], said - text.turns[0]);
  const size_t behind = said + answer.size();
  turn.end = std::string(absl::StripAsciiWhitespace(text.text.substr(behind, end - behind)));
  if (!turn.end.empty()) return turn;
  // Nothing ends the turn itself, as in Falcon's template. Then the next message does.
  conversation.messages.push_back({"user", next});
  SHALE_ASSIGN_OR_RETURN(const std::string longer, chat.Render(conversation, /*add_generation_prompt=*/false));
  const size_t asked = longer.find(next);
  if (asked == std::string::npos || asked < behind) return turn;
  turn.end = std::string(absl::StripTrailingAsciiWhitespace(longer.substr(behind, asked - behind)));
  return turn;
}

}  // namespace

absl::StatusOr<ChatTurn> FindTurn(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  SHALE_ASSIGN_OR_RETURN(ChatTurn turn, TextsOf(chat));
  if (!turn.end.empty()) turn.end_token = tokenizer.Find(turn.end);
  return turn;
}

}  // namespace shale
