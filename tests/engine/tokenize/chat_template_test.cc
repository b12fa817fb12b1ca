#include "engine/tokenize/chat_template.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "engine/hugging_face/strict_json.h"
#include "engine/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

const Json& Golden() {
  static const Json& golden = *[] {
    const char* other = std::getenv("CHAT_GOLDEN");
    const auto text = ReadFile(other != nullptr ? other : "tests/engine/tokenize/golden/chat.json", 1 << 24);
    EXPECT_TRUE(text.ok()) << text.status();
    absl::StatusOr<Json> json = ParseStrictJson(*text);
    EXPECT_TRUE(json.ok()) << json.status();
    return new Json(*std::move(json));
  }();
  return golden;
}

ChatTemplate Family(const std::string& name) {
  std::vector<std::pair<std::string, std::string>> tokens;
  for (const auto& [token, text] : Golden()["special_tokens"].items()) tokens.emplace_back(token, text);
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(Golden()["templates"][name].get<std::string>(), tokens);
  EXPECT_TRUE(chat.ok()) << name << ": " << chat.status();
  return *std::move(chat);
}

std::vector<ChatMessage> Messages(const Json& list) {
  std::vector<ChatMessage> messages;
  for (const Json& one : list) {
    ChatMessage message = {.role = one["role"], .content = one["content"]};
    for (const auto& [name, text] : one.items()) {
      if (name != "role" && name != "content") message.others.emplace_back(name, text);
    }
    messages.push_back(message);
  }
  return messages;
}

TEST(ChatTemplateTest, TextIsThatOfTransformersToTheByte) {
  for (const Json& one : Golden()["cases"]) {
    const std::string name = one["template"];
    const absl::StatusOr<std::string> text =
        Family(name).Render(Messages(one["messages"]), one["add_generation_prompt"].get<bool>());
    if (one.contains("refused")) {
      EXPECT_FALSE(text.ok()) << name << " " << one["messages"] << *text;
      continue;
    }
    ASSERT_TRUE(text.ok()) << name << " " << one["messages"] << ": " << text.status();
    EXPECT_EQ(*text, one["text"].get<std::string>()) << name;
  }
}

// Templates come with models of others. None may end the process.
TEST(ChatTemplateTest, ValuesAndExpressionsWithoutEndAreRefused) {
  const auto render = [](const std::string& source) -> absl::Status {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
    return chat.ok() ? chat->Render({{"user", "U"}}, false).status() : chat.status();
  };
  const std::string twice = "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
  std::string row = "'a'", lists = "{% set x = [1] %}";
  for (int i = 0; i < 5000; ++i) {
    row += "~'a'";
    lists += "{% set x = [x] %}";
  }
  for (const std::string& source :
       {"{{ " + row + " }}", lists + "{{ x|tojson }}",
        std::string("{% set ns = namespace(a=1) %}{% set ns.a = ns %}{{ ns|tojson }}"),
        std::string("{% set ns = namespace(a=1) %}{% set ns.a = [ns] %}{{ ns.a == ns }}"),
        std::string("{% set ns = namespace(a=1) %}{% for i in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}"),
        "{% set ns = namespace(x='ab') %}" + twice,
        std::string("{% set ns = namespace(x='a') %}{% for i in range(60) %}"
                    "{% set ns.x = ns.x|replace('a', 'aaaa') %}{% endfor %}")}) {
    EXPECT_EQ(render(source).code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 100);
  }
  const absl::Status fine = render("{% set ns = namespace(a=1) %}{% set ns.a = [ns.a, [2]] %}{{ ns.a|tojson }}");
  EXPECT_TRUE(fine.ok()) << fine;
}

TEST(ChatTemplateTest, TurnsAreWhatTheAssistantSaysWithItsEnd) {
  const std::vector<ChatMessage> messages = {
      {"system", "S"}, {"user", "U"}, {"assistant", "A b"}, {"user", "V"}, {"assistant", "C d"}};
  const auto turns = [&](const std::string& family) {
    const absl::StatusOr<ChatText> chat = Family(family).RenderWithTurns(messages);
    EXPECT_TRUE(chat.ok()) << family << ": " << chat.status();
    std::vector<std::string> parts;
    for (size_t i = 0; chat.ok() && i + 1 < chat->turns.size(); i += 2) {
      parts.push_back(chat->text.substr(chat->turns[i], chat->turns[i + 1] - chat->turns[i]));
    }
    return parts;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(turns("llama2"), ElementsAre(" A b </s>", " C d </s>"));
  EXPECT_THAT(turns("llama3"), ElementsAre("A b<|eot|>", "C d<|eot|>"));
  EXPECT_THAT(turns("qwen2"), ElementsAre("A b<|im_end|>\n", "C d<|im_end|>\n"));
  // The first answer lost its thoughts, which the template writes while it is the last one.
  EXPECT_THAT(turns("qwen3"), ElementsAre("A b<|im_end|>\n", "<think>\n\n</think>\n\nC d<|im_end|>\n"));
  EXPECT_THAT(turns("falcon"), ElementsAre(" A b", " C d"));
  EXPECT_THAT(turns("falcon_instruct"), ElementsAre(" A b", " C d"));
  EXPECT_THAT(turns("falcon3"), ElementsAre("A b</s>", "C d</s>"));
}

// Mistral's own templates write the system message only into a conversation that ends with a question. Training on what
// transformers makes of one that ends with an answer would train without it.
TEST(ChatTemplateTest, ASystemMessageThatTheTemplateLeavesOutIsRefused) {
  const ChatTemplate mistral = Family("mistral");
  std::vector<ChatMessage> messages = {{"system", " Be kind.\n"}, {"user", "U"}};
  EXPECT_EQ(*mistral.Render(messages, true), "<s>[INST] Be kind.\n\n\nU[/INST]");
  messages.push_back({"assistant", "A b"});
  EXPECT_EQ(*mistral.Render(messages, false), "<s>[INST]U[/INST]A b</s>");
  for (const absl::Status& status :
       {mistral.RenderAll(messages).status(), mistral.RenderWithTurns(messages).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("message 0: the template leaves out what the system says"));
  }
  messages.erase(messages.begin());
  const absl::StatusOr<ChatText> chat = mistral.RenderWithTurns(messages);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->text, "<s>[INST]U[/INST]A b</s>");
  EXPECT_THAT(chat->turns, ::testing::ElementsAre(17, 24));
}

// Regression, found by fuzzing: this template writes less with a generation prompt than without.
TEST(ChatTemplateTest, TurnsMustNotOverlap) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse("{{ 'abc'[:add_generation_prompt:-1] }}", {});
  ASSERT_TRUE(chat.ok()) << chat.status();
  const std::vector<ChatMessage> messages = {{"user", "U"}, {"assistant", ""}, {"user", "V"}, {"assistant", ""}};
  const absl::Status status = chat->RenderWithTurns(messages).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "message 3: the template ends its generation prompt within an earlier turn");
}

std::string ErrorOf(const std::string& source, const std::vector<ChatMessage>& messages = {{"user", "x"}}) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
  const absl::Status status = chat.ok() ? chat->Render(messages, false).status() : chat.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(status.message());
}

TEST(ChatTemplateTest, WhatIsNotSupportedIsNamed) {
  EXPECT_EQ(ErrorOf("a\n{% macro f() %}{% endmacro %}"),
            "line 2: the statement \"macro\" is not supported; supported: if, for, set, break, continue, generation");
  EXPECT_EQ(ErrorOf("{{ messages | sort }}"), "line 1: the filter \"sort\" is not supported");
  EXPECT_EQ(ErrorOf("{{ 1 is odd }}"), "line 1: the test \"odd\" is not supported");
  EXPECT_EQ(ErrorOf("{{ 'a'.zfill(3) }}"), "line 1: the method \"zfill\" of a string is not supported");
  EXPECT_EQ(ErrorOf("{{ strftime_now('%Y') }}"), "line 1: the function \"strftime_now\" is not supported");
  EXPECT_EQ(ErrorOf("{{ messages }}"), "line 1: to write a list as text is not supported");
  EXPECT_EQ(ErrorOf("{{ '\u00E9'.upper() }}"), "line 1: upper of letters beyond ASCII is not supported");
  EXPECT_EQ(ErrorOf("{{ {'a': 1} }}"), "line 1: mappings in a template are not supported");
  EXPECT_EQ(ErrorOf("{{ 1.5 }}"), "line 1: numbers with a fraction are not supported");
  EXPECT_EQ(ErrorOf("{{ raise_exception('No.') }}"), "line 1: the template refuses the conversation: \"No.\"");
}

TEST(ChatTemplateTest, WrongTemplatesAreRefused) {
  EXPECT_EQ(ErrorOf("{% if x %}a"), "line 1: the template ends before endif");
  EXPECT_EQ(ErrorOf("{{ x"), "line 1: a tag does not end: }} is missing");
  EXPECT_EQ(ErrorOf("{{ 'x }}"), "line 1: a string does not end");
  EXPECT_EQ(ErrorOf("{{ a b }}"), "line 1: found \"b\"; wanted the end of the tag");
  EXPECT_EQ(ErrorOf("{{ x.y.z }}"), "line 1: \"x\" is undefined");
  EXPECT_EQ(ErrorOf("{{ 1 + 'a' }}"), "line 1: + of an integer and a string is not supported");
  EXPECT_EQ(ErrorOf("{{ 9223372036854775807 + 1 }}"), "line 1: an integer is too large");
  EXPECT_EQ(ErrorOf("{{ 1 % 0 }}"), "line 1: a division by 0");
  EXPECT_THAT(ErrorOf("{{ " + std::string(1000, '(') + " }}"), HasSubstr("too deep"));
  EXPECT_THAT(ErrorOf("{{ " + std::string(1000, '-') + "1 }}"), HasSubstr("too deep"));
  EXPECT_EQ(ErrorOf("{% for i in range(999999) %}{% for j in range(999999) %}{% endfor %}{% endfor %}"),
            "line 1: the template takes too many steps");
}

}  // namespace
}  // namespace shale
