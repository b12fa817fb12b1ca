#include "engine/text/chat/chat_template.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/text/documents/text_row.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

const Json& Golden() {
  static const Json& golden = *[] {
    const char* other = std::getenv("CHAT_GOLDEN");
    const auto text = ReadFile(other != nullptr ? other : "tests/engine/text/golden/chat.json", 1 << 24);
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
    ChatMessage message(one["role"].get<std::string>(), one["content"].get<std::string>());
    for (const auto& [name, text] : one.items()) {
      if (name != "role" && name != "content")
        message.members.emplace_back(name, TemplateValue::Text(text.get<std::string>()));
    }
    messages.push_back(message);
  }
  return messages;
}

TEST(ChatTemplateTest, TextIsThatOfTransformersToTheByte) {
  for (const Json& one : Golden()["cases"]) {
    const std::string name = one["template"];
    const absl::StatusOr<std::string> text =
        Family(name).Render({.messages = Messages(one["messages"])}, one["add_generation_prompt"].get<bool>());
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
    return chat.ok() ? chat->Render({.messages = {{"user", "U"}}}, false).status() : chat.status();
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

// Null content was as none at all, so templates that tell calls of tools by it took another way than in transformers.
TEST(ChatTemplateTest, NullContentIsNoneAndIsNotWritten) {
  const auto text = [](const std::string& source) {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
    const auto path = std::make_shared<const std::string>("rows");
    const std::string row =
        R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"name": "f"}], "x": null}]})";
    const absl::StatusOr<TextRow> read =
        ReadTextRow({.text = row, .is_row = true, .path = path}, {.loss_on = LossOn::kAll, .chat = &*chat});
    return read.ok() ? read->text : std::string(read.status().message());
  };
  const std::string calls = "{{ m.tool_calls | tojson }}{% endfor %}";
  EXPECT_EQ(text("{% for m in messages %}{% if m.content is none %}!{% endif %}" + calls), "![{\"name\": \"f\"}]");
  EXPECT_EQ(text("{% for m in messages %}{% if 'x' in m %}!{% endif %}" + calls), "[{\"name\": \"f\"}]");
  EXPECT_EQ(text("{% for m in messages %}{{ m.content | trim }}" + calls),
            "rows:1: line 1: it writes \"content\" that is null, as transformers would write \"None\"; give it a text");
}

TEST(ChatTemplateTest, TurnsAreWhatTheAssistantSaysWithItsEnd) {
  const std::vector<ChatMessage> messages = {
      {"system", "S"}, {"user", "U"}, {"assistant", "A b"}, {"user", "V"}, {"assistant", "C d"}};
  const auto turns = [&](const std::string& family) {
    const absl::StatusOr<ChatText> chat = Family(family).RenderWithTurns({.messages = messages});
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
TEST(ChatTemplateTest, ASystemMessageThatTheTemplateLeavesOutIsNamed) {
  const ChatTemplate mistral = Family("mistral");
  std::vector<ChatMessage> messages = {{"system", " Be kind.\n"}, {"user", "U"}};
  EXPECT_EQ(*mistral.Render({.messages = messages}, true), "<s>[INST] Be kind.\n\n\nU[/INST]");
  messages.push_back({"assistant", "A b"});
  EXPECT_EQ(*mistral.Render({.messages = messages}, false), "<s>[INST]U[/INST]A b</s>");
  const std::string left_out = "message 0: \"content\": the template leaves it out: \"Be kind.\\n\"";
  const absl::StatusOr<ChatText> all = mistral.RenderAll({.messages = messages});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->left_out, HasSubstr(left_out));
  const absl::Status status = mistral.RenderWithTurns({.messages = messages}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(left_out));
  messages.erase(messages.begin());
  const absl::StatusOr<ChatText> chat = mistral.RenderWithTurns({.messages = messages});
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->text, "<s>[INST]U[/INST]A b</s>");
  EXPECT_THAT(chat->turns, ::testing::ElementsAre(17, 24));
}

// Regression, found by fuzzing: this template writes less with a generation prompt than without.
TEST(ChatTemplateTest, TurnsMustNotOverlap) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse("{{ 'abc'[:add_generation_prompt:-1] }}", {});
  ASSERT_TRUE(chat.ok()) << chat.status();
  const std::vector<ChatMessage> messages = {{"user", ""}, {"assistant", ""}, {"user", ""}, {"assistant", ""}};
  const absl::Status status = chat->RenderWithTurns({.messages = messages}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "message 3: the template ends its generation prompt within an earlier turn");
}

// Every string of a message must stand in the text. Before, an answer lost its thoughts, a message of a role that the
// template does not know lost everything, and only a message of the system was missed.
TEST(ChatTemplateTest, WhatATemplateLeavesOutIsNamed) {
  const auto left_out = [](const std::string& source, const std::vector<ChatMessage>& messages) {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
    EXPECT_TRUE(chat.ok()) << chat.status();
    const absl::StatusOr<ChatText> text = chat->RenderAll({.messages = messages});
    return text.ok() ? text->left_out : std::string(text.status().message());
  };
  const std::string all = "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %}";
  const std::string known =
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}] {{ m.content }}{% endif %}{% "
      "endfor %}";
  const std::string behind = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}";
  const std::string again =
      "{% for m in messages %}<think>\n{{ m.content.split('</think>')[0].split('<think>')[-1].strip('\n') "
      "}}\n</think>\n\n"
      "{{ m.content.split('</think>')[-1].strip('\n') }}{% endfor %}";
  const std::string thought = "<think>\nhm</think>\n\nWell.";
  EXPECT_EQ(left_out(all, {{"user", " a \n"}, {"critic", "b"}, {"assistant", ""}}), "");
  for (const char* role : {"developer", "tool", "ipython", "human"}) {
    EXPECT_EQ(left_out(known, {{"user", "a"}, {role, "Say it."}}),
              "message 1: \"content\": the template leaves it out: \"Say it.\"");
  }
  EXPECT_THAT(left_out(behind, {{"assistant", thought}}),
              HasSubstr("message 0: \"content\": the template leaves out, or changes, 17 of its 22 bytes"));
  EXPECT_EQ(left_out(again, {{"assistant", thought}}), "") << "the template writes the tags itself";
  // A short text that stands in the template, or in another message, is missed all the same.
  EXPECT_EQ(left_out(known, {{"user", "s"}, {"tool", "user"}}),
            "message 1: \"content\": the template leaves it out: \"user\"");
  EXPECT_EQ(left_out(known, {{"tool", "Yes"}, {"user", "Yes"}}),
            "message 0: \"content\": the template leaves it out: \"Yes\"");
  EXPECT_THAT(left_out("{{ messages[0].content | upper }}", {{"user", "Hello"}}),
              HasSubstr("leaves it out: \"Hello\""));
  EXPECT_EQ(left_out("{{ messages[0].content | replace('\r\n', '\n') | tojson }}", {{"user", "\"a\"\r\n\\b"}}), "");
  for (const char* name : {"reasoning_content", "thinking", "reasoning", "name"}) {
    ChatMessage message("assistant", "a");
    message.members.emplace_back(name, TemplateValue::Text("b"));
    EXPECT_EQ(left_out(all, {message}), absl::StrCat("message 0: \"", name, "\": the template leaves it out: \"b\""));
    const bool thoughts = std::string(name) != "name";
    EXPECT_EQ(left_out(all + "{{ messages[0].thinking }}", {message}).empty(), thoughts)
        << "transformers gives thoughts all their names";
  }
}

// Prompts of models that think end with <think>, which an answer without thoughts lacks.
TEST(ChatTemplateTest, AnAnswerBeginsWhereTextAndPromptPart) {
  const std::string source =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto turns = [&](const std::vector<ChatMessage>& messages) {
    const absl::StatusOr<ChatText> text = chat->RenderWithTurns({.messages = messages});
    EXPECT_TRUE(text.ok()) << text.status();
    std::vector<std::string> parts;
    for (size_t i = 0; text.ok() && i + 1 < text->turns.size(); i += 2) {
      parts.push_back(text->text.substr(text->turns[i], text->turns[i + 1] - text->turns[i]));
    }
    return parts;
  };
  EXPECT_THAT(turns({{"user", "U"}, {"assistant", "A"}, {"user", "V"}, {"assistant", "<think>\nhm</think>B"}}),
              ::testing::ElementsAre("A</s>", "hm</think>B</s>"));
  ChatMessage silent("assistant", "A");
  silent.counts = false;
  EXPECT_THAT(turns({{"user", "U"}, silent, {"user", "V"}, {"assistant", "B"}}), ::testing::ElementsAre("B</s>"));
}

TEST(ChatTemplateTest, MarkedTurnsAreThoseOfTheTemplate) {
  const std::string source =
      "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}!{% endgeneration %}"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}";
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
  ASSERT_TRUE(chat.ok()) << chat.status();
  std::vector<ChatMessage> messages = {{"user", "U"}, {"assistant", "x"}, {"user", "V"}, {"assistant", "y"}};
  absl::StatusOr<ChatText> text = chat->RenderWithTurns({.messages = messages});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->text, "UA:x!VA:y!");
  EXPECT_TRUE(text->marked);
  EXPECT_THAT(text->turns, ::testing::ElementsAre(3, 5, 8, 10));
  messages[1].counts = false;
  text = chat->RenderWithTurns({.messages = messages});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(text->turns, ::testing::ElementsAre(8, 10));
  const absl::StatusOr<ChatTemplate> none =
      ChatTemplate::Parse("{{ messages[0].content }}{% if false %}{% generation %}{% endgeneration %}{% endif %}", {});
  EXPECT_EQ(none->RenderWithTurns({.messages = {{"assistant", "x"}}}).status().message(),
            "the template marks no answer of this conversation with {% generation %}");
}

TEST(ChatTemplateTest, FoldersHaveNamedTemplates) {
  TempFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder.path() + "/" + name).parent_path());
    std::ofstream(folder.path() + "/" + name) << text;
  };
  const auto render = [&](bool tools) -> std::string {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Load(folder.path());
    if (!chat.ok()) return std::string(chat.status().message());
    Conversation conversation = {.messages = {{"user", "U"}}};
    if (tools) conversation.tools = TemplateValue::Of(TemplateValue::List{});
    return chat->Render(conversation, false).value_or("refused");
  };
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "T"}]})");
  EXPECT_EQ(render(true), "T");
  EXPECT_EQ(render(false), "refused") << "there is no default";
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  EXPECT_EQ(render(true) + render(false), "TD");
  write("tokenizer_config.json", R"({"chat_template": [1]})");
  EXPECT_EQ(render(false), folder.path() +
                               "/tokenizer_config.json: chat_template: found 1; wanted a string, or a list of objects "
                               "with the strings \"name\" and \"template\"");
  write("chat_template.jinja", "F");
  EXPECT_EQ(render(true) + render(false), "FF") << "files go before tokenizer_config.json";
  write("additional_chat_templates/tool_use.jinja", "FT");
  EXPECT_EQ(render(true) + render(false), "FTF");
}

std::string ErrorOf(const std::string& source, const std::vector<ChatMessage>& messages = {{"user", "x"}}) {
  const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {});
  const absl::Status status = chat.ok() ? chat->Render({.messages = messages}, false).status() : chat.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(status.message());
}

TEST(ChatTemplateTest, WhatIsNotSupportedIsNamed) {
  EXPECT_EQ(ErrorOf("a\n{% macro f() %}{% endmacro %}"),
            "line 2: the statement \"macro\" is not supported; supported: if, for, set, break, continue, generation");
  EXPECT_EQ(ErrorOf("{{ messages | sort }}"), "line 1: the filter \"sort\" is not supported");
  EXPECT_EQ(ErrorOf("{{ 1 is odd }}"), "line 1: the test \"odd\" is not supported");
  EXPECT_EQ(ErrorOf("{{ 'a'.zfill(3) }}"), "line 1: the method \"zfill\" of a string is not supported");
  EXPECT_EQ(ErrorOf("{{ strftime_now('%Y') }}"),
            "line 1: the template writes today's date (strftime_now), which would make other text on every day; set "
            "data.date "
            "to the day that it should write, such as \"2026-11-28\"");
  EXPECT_EQ(ErrorOf("{{ messages }}"), "line 1: to write a list as text is not supported");
  EXPECT_EQ(ErrorOf("{{ '\u00E9'.upper() }}"), "line 1: upper of letters beyond ASCII is not supported");
  EXPECT_EQ(ErrorOf("{{ {'a': 1} }}"), "line 1: mappings in a template are not supported");
  EXPECT_EQ(ErrorOf("{{ 1.5 }}"), "line 1: numbers with a fraction are not supported");
  EXPECT_EQ(ErrorOf("{{ raise_exception('No.') }}"), "line 1: the template refuses the conversation: \"No.\"");
}

// Before, the first of these took all memory: each step was within its bound, and their sum was not.
TEST(ChatTemplateTest, WhatATemplateBuildsIsCounted) {
  const std::string list = "{% set ns = namespace(x='ab', l=[1]) %}{% for i in range(60) %}";
  for (const char* step :
       {"{% set ns.x = ns.x ~ ns.x %}", "{% set ns.l = ns.l + ns.l %}", "{% set ns.x = [ns.x, ns.x] | join %}",
        "{% set ns.x = ns.x | tojson %}", "{% set ns.x = ns.x.replace('a', 'aaaaaaaa') %}",
        "{% set ns.l = [ns.l, ns.l] %}{{ ns.l == ns.l }}",
        "{% set ns.x = ns.x ~ ns.x %}{% set ns.l = [ns.l, ns.x | list] %}",
        "{% set ns.x = ns.x ~ ns.x %}{% set ns.l = [ns.l, ns.x.split('a')] %}"}) {
    EXPECT_THAT(ErrorOf(list + step + "{% endfor %}"),
                ::testing::AnyOf(HasSubstr("the template builds too much: more than 256 MiB"), HasSubstr("too long")))
        << step;
  }
}

// What Jinja takes for a generator, a view or a method is no list and no element here either.
TEST(ChatTemplateTest, ValuesAreThoseOfPython) {
  const auto render = [](const std::string& source) {
    const absl::StatusOr<ChatTemplate> chat = ChatTemplate::Parse(source, {}, "2026-03-05");
    return chat->Render({.messages = {{"user", "x"}}}, false).value_or("refused");
  };
  EXPECT_EQ(render("{{ 'yes' if messages | selectattr('nothing') else 'no' }}"), "yes");
  EXPECT_EQ(render("{% set g = messages | map(attribute='role') %}{{ g | join }}{{ g | join }}"), "user");
  EXPECT_EQ(render("{{ messages | map(attribute='role') | first }}"), "user");
  EXPECT_EQ(render("{{ messages | reverse | length }}"), "refused");
  EXPECT_EQ(render("{{ messages[0].items is defined }}"), "True");
  EXPECT_EQ(render("{{ messages[0].items()[0] is defined }}"), "False");
  EXPECT_EQ(render("{{ range(2) == [0, 1] }}"), "False");
  EXPECT_EQ(render("{{ 'yes' if namespace() else 'no' }}"), "yes");
  EXPECT_EQ(render("{{ loop is defined }}{% for m in messages %}{{ loop.depth }}{% endfor %}"), "refused");
  EXPECT_EQ(render("{{ \"it's a pigeon-hole\" | title }}{{ \"it's\".title() }}"), "It's A Pigeon-HoleIt'S");
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y, %A, day %-j') }}"), "05 Mar 2026, Thursday, day 64");
  EXPECT_EQ(render("{{ strftime_now is defined }}"), "True");
  EXPECT_EQ(render("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}"), "False");
  // Jinja's `else` of a loop: no element went through the whole body. It was: there is no element.
  EXPECT_EQ(render("{% for i in [1, 2] %}{% continue %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render("{% for i in [1, 2] %}{% break %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render("{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}"),
            "12");
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
  EXPECT_EQ(ErrorOf("{% set a = range(999) %}{% for i in a %}{% for j in a %}{% for k in a %}{% endfor %}{% endfor "
                    "%}{% endfor %}"),
            "line 1: the template takes too many steps");
}

}  // namespace
}  // namespace shale
