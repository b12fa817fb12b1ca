#include "tools/chat.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/run/generate/generated_text.h"
#include "engine/text/chat/chat_template.h"
#include "kernels/check.h"

namespace shale {
namespace {

// The messages of a chat so far.
class ChatHistory {
 public:
  ChatHistory(const Tokenizer& tokenizer, const ChatTemplate& chat, const std::string& system)
      : encoder_(tokenizer), chat_(chat) {
    if (!system.empty()) messages_.emplace_back("system", system);
    kept_ = messages_.size();
  }

  void Add(std::string role, std::string content) { messages_.emplace_back(std::move(role), std::move(content)); }
  // Returns the tokens of the conversation up to where the assistant goes on. Forgets the oldest turns until they are
  // fewer than `positions`. Returns OutOfRange, and forgets the last message alone, if that does not fit by itself.
  absl::StatusOr<std::vector<int32_t>> Tokens(int64_t positions) {
    std::vector<ChatMessage> messages = messages_;
    while (true) {
      SHALE_ASSIGN_OR_RETURN(const std::string text,
                             chat_.Render({.messages = messages}, /*add_generation_prompt=*/true));
      std::vector<int32_t> tokens;
      SHALE_RETURN_IF_ERROR(encoder_.Encode(text, {}, &tokens));
      if (std::ssize(tokens) < positions) {
        messages_ = std::move(messages);
        return tokens;
      }
      if (messages.size() < kept_ + 3) {
        messages_.pop_back();
        return absl::OutOfRangeError(absl::StrCat("the message has ", tokens.size(),
                                                  " tokens with what the template writes around it; at most ",
                                                  positions - 1, " fit, see --context"));
      }
      messages.erase(messages.begin() + static_cast<std::ptrdiff_t>(kept_),
                     messages.begin() + static_cast<std::ptrdiff_t>(kept_) + 2);
    }
  }

 private:
  Encoder encoder_;
  const ChatTemplate& chat_;
  std::vector<ChatMessage> messages_;
  size_t kept_ = 0;  // Messages at the beginning that are never forgotten.
};

// The text of an answer, as a message has it: without what the template itself writes before a message of the
// assistant, often a space, with which a model begins its answers too.
class ShownAnswer {
 public:
  ShownAnswer(const std::string& before, const std::function<void(absl::string_view)>& show)
      : before_(before), show_(show) {}

  // Shows what the model goes on with. Holds it back while it may be the beginning of `before`.
  void Add(const std::string& more) {
    text_ += more;
    if (begun_) return show_(more);
    if (text_.size() < before_.size() && absl::StartsWith(before_, text_)) return;
    Begin();
  }
  // Shows what was held back, and returns the answer.
  std::string End() {
    if (!begun_) Begin();
    return text_;
  }

 private:
  void Begin() {
    begun_ = true;
    if (absl::StartsWith(text_, before_)) text_.erase(0, before_.size());
    show_(text_);
  }

  const std::string& before_;
  const std::function<void(absl::string_view)>& show_;
  std::string text_;
  bool begun_ = false;
};

}  // namespace

absl::Status Chat(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatOptions& options, std::istream& in) {
  SHALE_ASSIGN_OR_RETURN(const ChatTurn turn, FindTurn(chat, tokenizer));
  std::vector<int32_t> stop_tokens = options.stop_tokens;
  std::vector<std::string> stop_strings = options.stop_strings;
  if (turn.end_token >= 0) {
    stop_tokens.push_back(turn.end_token);
  } else {
    stop_strings.push_back(turn.end);
  }
  ChatHistory history(tokenizer, chat, options.system);
  std::string line;
  for (options.before_message(); std::getline(in, line); options.before_message()) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    history.Add("user", line);
    const absl::StatusOr<std::vector<int32_t>> tokens = history.Tokens(options.positions);
    if (absl::IsOutOfRange(tokens.status())) {
      options.show(absl::StrCat("(not answered: ", tokens.status().message(), ")\n"));
      continue;
    }
    SHALE_RETURN_IF_ERROR(tokens.status());
    GeneratedText text(&tokenizer, /*is_text=*/false, /*skip_special=*/true, stop_strings);
    ShownAnswer answer(turn.before, options.show);
    SHALE_RETURN_IF_ERROR(options.generate(*tokens, [&](int32_t token) {
      if (std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end()) return false;
      answer.Add(text.Push(token));
      return !text.stopped();
    }));
    answer.Add(text.Finish());
    history.Add("assistant", answer.End());
    options.show("\n");
  }
  return absl::OkStatus();
}

}  // namespace shale
