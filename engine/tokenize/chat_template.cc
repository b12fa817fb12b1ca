#include "engine/tokenize/chat_template.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/io/crc32c.h"
#include "engine/io/file.h"
#include "engine/text/utf8.h"
#include "engine/tokenize/template_functions.h"
#include "engine/tokenize/template_parser.h"
#include "engine/tokenize/template_render.h"
#include "engine/tokenize/tokenizer_folder.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 28;

// Returns where a turn of the assistant ends in `text`: after what the assistant says and what the template writes
// behind it. `shorter` is the text of a conversation that ends with this turn. The turn begins at `begin` in both
// texts.
absl::StatusOr<size_t> EndOfTurn(absl::string_view text, absl::string_view shorter, size_t begin,
                                 const std::string& content) {
  if (absl::StartsWith(text, shorter)) return shorter.size();
  // The template writes the last message of a conversation in another way than the messages before it.
  SHALE_ASSIGN_OR_RETURN(const TemplateValue said, ApplyMethod("strip", TemplateValue::Text(content), {}));
  const size_t in_shorter = shorter.rfind(said.text), in_text = text.find(said.text, begin);
  if (in_shorter != absl::string_view::npos && in_shorter >= begin && in_text != absl::string_view::npos) {
    const absl::string_view ending = shorter.substr(in_shorter + said.text.size());
    const size_t end = in_text + said.text.size();
    if (absl::StartsWith(text.substr(end), ending)) return end + ending.size();
  }
  return absl::InvalidArgumentError("the template changes what the assistant said when the conversation goes on");
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& folder) {
  const std::string config_path = JoinPath(folder, "tokenizer_config.json");
  Json config = Json::object();
  const absl::StatusOr<std::string> bytes = ReadFile(config_path, kMaxConfigBytes);
  if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
  if (bytes.ok()) {
    absl::StatusOr<Json> json = ParseStrictJson(*bytes);
    if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(config_path, ": ", json.status().message()));
    config = *std::move(json);
  }
  std::string path = JoinPath(folder, "chat_template.jinja");
  absl::StatusOr<std::string> source = ReadFile(path, kMaxTemplateBytes);
  if (absl::IsNotFound(source.status())) {
    if (!config.contains("chat_template") || !config["chat_template"].is_string()) {
      return absl::NotFoundError(absl::StrCat(folder,
                                              " has no chat template: neither chat_template.jinja nor a string "
                                              "\"chat_template\" in tokenizer_config.json"));
    }
    path = absl::StrCat(config_path, ": chat_template");
    source = config["chat_template"].get<std::string>();
  }
  if (!source.ok()) return source.status();
  SHALE_ASSIGN_OR_RETURN(SpecialTokens special_tokens, ReadSpecialTokens(folder));
  // The digest stands in checkpoints, so tokens that a template does not read must not change it, nor their order.
  special_tokens.erase(
      std::remove_if(
          special_tokens.begin(), special_tokens.end(),
          [&](const auto& token) { return !config.contains(token.first) && !absl::StrContains(*source, token.first); }),
      special_tokens.end());
  std::sort(special_tokens.begin(), special_tokens.end());
  absl::StatusOr<ChatTemplate> chat = Parse(*source, special_tokens);
  if (chat.ok()) return chat;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", chat.status().message()));
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source,
                                                 std::vector<std::pair<std::string, std::string>> special_tokens) {
  ChatTemplate chat;
  if (!IsUtf8(source)) return absl::InvalidArgumentError("it is not UTF-8");
  SHALE_ASSIGN_OR_RETURN(std::vector<TemplateStatement> statements, ParseTemplate(source));
  chat.statements_ = std::make_shared<const std::vector<TemplateStatement>>(std::move(statements));
  TemplateValue::Dict tokens;
  chat.digest_ = Crc32c(source);
  for (const auto& [name, token] : special_tokens) {
    tokens.emplace_back(name, TemplateValue::Text(token));
    chat.digest_ = Crc32c(absl::StrCat(name, "=", token, "\n"), chat.digest_);
  }
  chat.special_tokens_ = TemplateValue::Of(std::move(tokens));
  return chat;
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                 bool add_generation_prompt) const {
  TemplateValue::List list;
  for (const ChatMessage& message : messages) {
    TemplateValue::Dict members = {{"role", TemplateValue::Text(message.role)},
                                   {"content", TemplateValue::Text(message.content)}};
    for (const auto& [name, text] : message.others) members.emplace_back(name, TemplateValue::Text(text));
    list.push_back(TemplateValue::Of(std::move(members)));
  }
  TemplateValue::Dict variables = *special_tokens_.dict;
  variables.emplace_back("messages", TemplateValue::Of(std::move(list)));
  variables.emplace_back("tools", TemplateValue::None());
  variables.emplace_back("documents", TemplateValue::None());
  variables.emplace_back("add_generation_prompt", TemplateValue::Bool(add_generation_prompt));
  return RenderTemplate(*statements_, TemplateValue::Of(std::move(variables)));
}

absl::StatusOr<std::string> ChatTemplate::RenderAll(const std::vector<ChatMessage>& messages) const {
  SHALE_ASSIGN_OR_RETURN(std::string text, Render(messages, /*add_generation_prompt=*/false));
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "system") continue;
    SHALE_ASSIGN_OR_RETURN(const TemplateValue said,
                           ApplyMethod("strip", TemplateValue::Text(messages[i].content), {}));
    if (absl::StrContains(text, said.text)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("message ", i,
                     ": the template leaves out what the system says (those of Mistral write it only while the last "
                     "message is of the user); put it before what the user says first"));
  }
  return text;
}

absl::StatusOr<ChatText> ChatTemplate::RenderWithTurns(const std::vector<ChatMessage>& messages) const {
  ChatText chat;
  SHALE_ASSIGN_OR_RETURN(chat.text, RenderAll(messages));
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    std::vector<ChatMessage> before(messages.begin(), messages.begin() + i);
    SHALE_ASSIGN_OR_RETURN(const std::string prompt, Render(before, /*add_generation_prompt=*/true));
    if (!absl::StartsWith(chat.text, prompt)) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i, ": the template does not begin it with the generation prompt"));
    }
    if (!chat.turns.empty() && prompt.size() < chat.turns.back()) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i, ": the template ends its generation prompt within an earlier turn"));
    }
    before.push_back(messages[i]);
    SHALE_ASSIGN_OR_RETURN(const std::string shorter, Render(before, /*add_generation_prompt=*/false));
    const absl::StatusOr<size_t> end = EndOfTurn(chat.text, shorter, prompt.size(), messages[i].content);
    if (!end.ok()) return absl::InvalidArgumentError(absl::StrCat("message ", i, ": ", end.status().message()));
    chat.turns.push_back(prompt.size());
    chat.turns.push_back(*end);
  }
  return chat;
}

}  // namespace shale
