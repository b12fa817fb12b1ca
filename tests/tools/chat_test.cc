#include "tools/chat.h"

#include <sstream>

#include "absl/strings/str_cat.h"
#include "engine/run/generate/generated_text.h"
#include "engine/text/tokenizer/bpe_trainer.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;

constexpr char kTemplate[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ end }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

// A model that says what it is told to, token by token.
class ChatTest : public ::testing::Test {
 protected:
  ChatTest() {
    options_.positions = 1000;
    options_.before_message = [] {};
    options_.show = [this](absl::string_view text) { absl::StrAppend(&shown_, text); };
    options_.generate = [this](const std::vector<int32_t>& conversation, const std::function<bool(int32_t)>& emit) {
      seen_.push_back(tokenizer_.Decode(conversation, /*skip_special=*/false));
      std::vector<int32_t> tokens;
      const absl::Status status = Encoder(tokenizer_).Encode(answers_.at(seen_.size() - 1), {}, &tokens);
      for (const int32_t token : tokens) {
        if (!emit(token)) break;
      }
      return status;
    };
  }

  static Tokenizer MakeTokenizer() {
    const std::vector<std::string> special = {"<|end|>", "<|user|>", "<|assistant|>", "<|system|>"};
    return *Tokenizer::FromJson(
        TokenizerJson(TrainBpe({}, special, 256 + std::ssize(special), 1), special, kGpt2Pattern));
  }

  // Talks with a template that ends a turn with `end`.
  absl::Status Talk(const std::string& end, const std::string& messages) {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(kTemplate, {{"end", end}});
    EXPECT_TRUE(chat.ok()) << chat.status();
    std::istringstream in(messages);
    return Chat(tokenizer_, *chat, options_, in);
  }

  const Tokenizer tokenizer_ = MakeTokenizer();
  ChatOptions options_;
  std::vector<std::string> answers_, seen_;
  std::string shown_;
};

TEST_F(ChatTest, AnAnswerEndsWithItsTurnAndBelongsToTheConversation) {
  answers_ = {"Hello!<|end|>more", "Good\u00a0night.<|end|>"};
  const absl::Status status = Talk("<|end|>", "hi\n\nbye\n");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(shown_, "Hello!\nGood\u00a0night.\n");
  EXPECT_THAT(seen_, ElementsAre("<|user|>hi<|end|><|assistant|>",
                                 "<|user|>hi<|end|><|assistant|>Hello!<|end|><|user|>bye<|end|><|assistant|>"));
}

// What the user wrote is shown, and neither what the tokenizer puts before a text nor special tokens of the model.
TEST_F(ChatTest, SpecialTokensAreShownWhereTheyWereWritten) {
  std::vector<int32_t> tokens;
  ASSERT_TRUE(Encoder(tokenizer_).Encode("<|user|>a<|system|>", {}, &tokens).ok());
  ASSERT_EQ(tokens.size(), 3);
  for (const bool skip_special : {true, false}) {
    GeneratedText text(&tokenizer_, /*is_text=*/false, skip_special, {});
    std::string shown = text.PushPrompt(tokenizer_.Find("<|system|>"), /*written=*/false);
    for (const int32_t token : tokens) shown += text.PushPrompt(token);
    for (const int32_t token : tokens) shown += text.Push(token);
    EXPECT_EQ(shown + text.Finish(), skip_special ? "<|user|>a<|system|>a" : "<|user|>a<|system|><|user|>a<|system|>");
  }
}

// What ends a turn may be no token of its own: then it is a text, which several tokens make up.
TEST_F(ChatTest, AnAnswerEndsWithATextOfSeveralTokens) {
  answers_ = {"One</s>two", "no stop</s"};
  options_.system = "Be brief.";
  const absl::Status status = Talk("</s>\n", "a\nb\n");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(shown_, "One\nno stop</s\n");
  EXPECT_EQ(seen_[0], "<|system|>Be brief.</s>\n<|user|>a</s>\n<|assistant|>");
}

TEST_F(ChatTest, ALongConversationForgetsItsOldestTurns) {
  answers_ = {"A<|end|>", "B<|end|>", "C<|end|>"};
  options_.system = "S";
  options_.positions = 20;
  const absl::Status status = Talk("<|end|>", "one\ntwo\nthree\n");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(seen_[1], "<|system|>S<|end|><|user|>one<|end|><|assistant|>A<|end|><|user|>two<|end|><|assistant|>");
  EXPECT_EQ(seen_[2], "<|system|>S<|end|><|user|>two<|end|><|assistant|>B<|end|><|user|>three<|end|><|assistant|>");
}

TEST_F(ChatTest, AMessageThatIsTooLongIsNotAnsweredAndTheChatGoesOn) {
  answers_ = {"A<|end|>", "B<|end|>"};
  options_.system = "S";
  options_.positions = 20;
  const absl::Status status = Talk("<|end|>", "one\na message of too many tokens\ntwo\n");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(shown_,
            "A\n(not answered: the message has 34 tokens with what the template writes around it; at most 19 fit, see "
            "--context)\nB\n");
  EXPECT_EQ(seen_[1], "<|system|>S<|end|><|user|>one<|end|><|assistant|>A<|end|><|user|>two<|end|><|assistant|>");
}

// Falcon's template writes nothing behind an answer, so the next message ends it. It writes a space before it, with
// which answers begin too, and which is not shown.
TEST_F(ChatTest, TheNextMessageEndsAnAnswerBehindWhichTheTemplateWritesNothing) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(
      "{% for m in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{{ m.role }}: {{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '\n' }}assistant:{% endif %}",
      {});
  ASSERT_TRUE(chat.ok()) << chat.status();
  answers_ = {" One\ntwo\nuser: more", "  Bye", "", " "};
  std::istringstream in("hi\nwell\nbye\n\nwell?\n");
  const absl::Status status = Chat(tokenizer_, *chat, options_, in);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(shown_, "One\ntwo\n Bye\n\n\n");
  EXPECT_EQ(seen_[1], "user: hi\nassistant: One\ntwo\nuser: well\nassistant:");
}

}  // namespace
}  // namespace shale
