#include "tools/chat.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "tools/generated_text.h"

namespace shale {
namespace {

// Returns what the template writes behind what the assistant says, without white space at its end.
absl::StatusOr<std::string> EndOfTurn(const ChatTemplate& chat) {
  const std::string answer = "answer";
  SHALE_ASSIGN_OR_RETURN(const ChatText text, chat.RenderWithTurns({{.role = "user", .content = "question"},
                                                                    {.role = "assistant", .content = answer}}));
  if (text.turns.empty()) return std::string();
  const size_t end = text.turns.size() > 1 ? text.turns[1] : text.text.size();
  const std::string turn = text.text.substr(text.turns[0], end - text.turns[0]);
  const size_t said = turn.find(answer);
  if (said == std::string::npos) return std::string();
  return std::string(absl::StripAsciiWhitespace(turn.substr(said + answer.size())));
}

// A conversation so far.
class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, const ChatTemplate& chat, const std::string& system)
      : encoder_(tokenizer), chat_(chat) {
    if (!system.empty()) messages_.push_back({.role = "system", .content = system});
    kept_ = messages_.size();
  }

  void Add(std::string role, std::string content) {
    messages_.push_back({.role = std::move(role), .content = std::move(content)});
  }
  // Returns the tokens of the conversation up to where the assistant goes on. Forgets the oldest turns until they are
  // fewer than `positions`.
  absl::StatusOr<std::vector<int32_t>> Tokens(int64_t positions) {
    while (true) {
      SHALE_ASSIGN_OR_RETURN(const std::string text, chat_.Render(messages_, /*add_generation_prompt=*/true));
      std::vector<int32_t> tokens;
      SHALE_RETURN_IF_ERROR(encoder_.Encode(text, {}, &tokens));
      if (std::ssize(tokens) < positions) return tokens;
      if (messages_.size() < kept_ + 3) {
        return absl::InvalidArgumentError(absl::StrCat("the message has ", tokens.size(),
                                                       " tokens with what the template writes around it; at most ",
                                                       positions - 1, " fit, see --context"));
      }
      messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(kept_),
                      messages_.begin() + static_cast<std::ptrdiff_t>(kept_) + 2);
    }
  }

 private:
  Encoder encoder_;
  const ChatTemplate& chat_;
  std::vector<ChatMessage> messages_;
  size_t kept_ = 0;  // Messages at the beginning that are never forgotten.
};

}  // namespace

absl::Status Chat(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatOptions& options, std::istream& in) {
  SHALE_ASSIGN_OR_RETURN(const std::string end, EndOfTurn(chat));
  std::vector<int32_t> stop_tokens = options.stop_tokens;
  std::vector<std::string> stop_strings = options.stop_strings;
  if (const int32_t token = end.empty() ? -1 : tokenizer.Find(end); token >= 0) {
    stop_tokens.push_back(token);
  } else {
    stop_strings.push_back(end);
  }
  Conversation conversation(tokenizer, chat, options.system);
  std::string line;
  for (options.before_message(); std::getline(in, line); options.before_message()) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    conversation.Add("user", line);
    SHALE_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, conversation.Tokens(options.positions));
    GeneratedText text(&tokenizer, /*is_text=*/false, /*skip_special=*/true, stop_strings);
    std::string answer;
    const auto say = [&](const std::string& more) {
      answer += more;
      options.show(more);
    };
    SHALE_RETURN_IF_ERROR(options.generate(tokens, [&](int32_t token) {
      if (std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end()) return false;
      say(text.Push(token));
      return !text.stopped();
    }));
    say(text.Finish());
    options.show("\n");
    conversation.Add("assistant", answer);
  }
  return absl::OkStatus();
}

}  // namespace shale
