#include "engine/text/chat/chat_template.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/checksums.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "engine/strings/utf8.h"
#include "engine/text/chat/conversation.h"
#include "engine/text/chat/template_parser.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 28;
constexpr char kDefaultName[] = "default", kToolUseName[] = "tool_use";

// A template of a folder.
struct NamedSource {
  std::string name;
  std::string source;
  std::string place;  // The file, for messages.
};

// Reads chat_template.jinja, and the files of additional_chat_templates, which are named after their templates.
absl::StatusOr<std::vector<NamedSource>> TemplateFiles(const std::string& folder) {
  std::vector<NamedSource> sources = {{.name = kDefaultName, .place = JoinPath(folder, "chat_template.jinja")}};
  const std::string others = JoinPath(folder, "additional_chat_templates");
  if (const absl::StatusOr<std::vector<std::string>> names = ListFolder(others); names.ok()) {
    for (const std::string& name : *names) {
      absl::string_view stem = name;
      if (absl::ConsumeSuffix(&stem, ".jinja")) {
        sources.push_back({.name = std::string(stem), .place = JoinPath(others, name)});
      }
    }
  }
  for (NamedSource& one : sources) {
    absl::StatusOr<std::string> source = ReadFile(one.place, kMaxTemplateBytes);
    if (absl::IsNotFound(source.status()) && &one == &sources[0]) continue;
    if (!source.ok()) return source.status();
    one.source = *std::move(source);
  }
  if (sources[0].source.empty()) sources.erase(sources.begin());
  return sources;
}

// Reads "chat_template" of tokenizer_config.json: a template, or several with names.
absl::StatusOr<std::vector<NamedSource>> TemplatesOf(const Json& config, const std::string& path) {
  const std::string place = absl::StrCat(path, ": chat_template");
  const auto found = config.find("chat_template");
  std::vector<NamedSource> sources;
  if (found == config.end() || found->is_null()) return sources;
  const auto wrong = [&](const Json& value) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": found ", ShownJson(value),
                     "; wanted a string, or a list of objects with the strings \"name\" and \"template\""));
  };
  if (found->is_string()) {
    sources.push_back({kDefaultName, found->get<std::string>(), place});
  } else if (found->is_array()) {
    for (const Json& one : *found) {
      const bool good = one.is_object() && one.contains("name") && one["name"].is_string() &&
                        one.contains("template") && one["template"].is_string();
      if (!good) return wrong(one);
      const std::string name = one["name"];
      sources.push_back({name, one["template"], absl::StrCat(place, ": ", Quoted(name))});
    }
  } else if (found->is_object()) {
    for (const auto& [name, source] : found->items()) {
      if (!source.is_string()) return wrong(*found);
      sources.push_back({name, source.get<std::string>(), absl::StrCat(place, ": ", Quoted(name))});
    }
  } else {
    return wrong(*found);
  }
  return sources;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& folder, const std::string& date) {
  const std::string config_path = JoinPath(folder, "tokenizer_config.json");
  Json config = Json::object();
  const absl::StatusOr<std::string> bytes = ReadFile(config_path, kMaxConfigBytes);
  if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
  if (bytes.ok()) {
    absl::StatusOr<Json> json = ParseStrictJson(*bytes);
    if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(config_path, ": ", json.status().message()));
    config = *std::move(json);
  }
  SHALE_ASSIGN_OR_RETURN(std::vector<NamedSource> sources, TemplateFiles(folder));
  if (sources.empty()) {
    SHALE_ASSIGN_OR_RETURN(sources, TemplatesOf(config, config_path));
  }
  if (sources.empty()) {
    return absl::NotFoundError(absl::StrCat(folder,
                                            " has no chat template: neither chat_template.jinja nor \"chat_template\" "
                                            "in tokenizer_config.json; put the template that the model was trained "
                                            "with there as chat_template.jinja"));
  }
  ChatTemplate chat;
  chat.date_ = date;
  for (const NamedSource& one : sources) {
    const absl::Status added = chat.Add(one.name, one.source);
    if (!added.ok()) return absl::InvalidArgumentError(absl::StrCat(one.place, ": ", added.message()));
  }
  SHALE_ASSIGN_OR_RETURN(SpecialTokens special_tokens, ReadSpecialTokens(folder));
  // The digest stands in checkpoints, so tokens that no template reads must not change it, nor their order.
  const auto is_read = [&](const auto& token) {
    return config.contains(token.first) || std::any_of(sources.begin(), sources.end(), [&](const NamedSource& one) {
             return absl::StrContains(one.source, token.first);
           });
  };
  special_tokens.erase(
      std::remove_if(special_tokens.begin(), special_tokens.end(), [&](const auto& token) { return !is_read(token); }),
      special_tokens.end());
  std::sort(special_tokens.begin(), special_tokens.end());
  chat.SetTokens(special_tokens);
  return chat;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source,
                                                 std::vector<std::pair<std::string, std::string>> special_tokens,
                                                 const std::string& date) {
  ChatTemplate chat;
  chat.date_ = date;
  SHALE_RETURN_IF_ERROR(chat.Add(kDefaultName, source));
  chat.SetTokens(special_tokens);
  return chat;
}

absl::Status ChatTemplate::Add(const std::string& name, absl::string_view source) {
  absl::StrAppend(&names_, names_.empty() ? "" : ", ", Quoted(name));
  if (name != kDefaultName && name != kToolUseName) return absl::OkStatus();
  if (!IsUtf8(source)) return absl::InvalidArgumentError("it is not UTF-8");
  SHALE_ASSIGN_OR_RETURN(std::vector<TemplateStatement> statements, ParseTemplate(source));
  (name == kDefaultName ? default_ : tool_use_) =
      std::make_shared<const std::vector<TemplateStatement>>(std::move(statements));
  digest_ = Crc32c(source, digest_);
  if (absl::StrContains(source, "strftime_now")) digest_ = Crc32c(date_, digest_);
  return absl::OkStatus();
}

void ChatTemplate::SetTokens(const std::vector<std::pair<std::string, std::string>>& special_tokens) {
  TemplateValue::Dict tokens;
  for (const auto& [name, token] : special_tokens) {
    tokens.emplace_back(name, TemplateValue::Text(token));
    digest_ = Crc32c(absl::StrCat(name, "=", token, "\n"), digest_);
  }
  special_tokens_ = TemplateValue::Of(std::move(tokens));
}

absl::StatusOr<ChatTemplate::Statements> ChatTemplate::For(const NumberedConversation& conversation) const {
  const bool tools = !conversation.tools.is(TemplateValue::Kind::kNone);
  if (tools && tool_use_ != nullptr) return tool_use_;
  if (default_ != nullptr) return default_;
  return absl::InvalidArgumentError(absl::StrCat("there are the chat templates ", names_,
                                                 ", and none of them is \"default\"; write the one to use into "
                                                 "chat_template.jinja"));
}

absl::StatusOr<RenderedTemplate> ChatTemplate::Render(const NumberedConversation& conversation, size_t messages,
                                                      bool add_generation_prompt) const {
  SHALE_ASSIGN_OR_RETURN(const Statements statements, For(conversation));
  TemplateValue::Dict variables = *special_tokens_.dict;
  for (const auto& [name, value] : conversation.variables) {
    const auto found =
        std::find_if(variables.begin(), variables.end(), [&](const auto& variable) { return variable.first == name; });
    if (found == variables.end()) {
      variables.emplace_back(name, value);
    } else {
      found->second = value;
    }
  }
  variables.emplace_back("messages", TemplateValue::Of(TemplateValue::List(
                                         conversation.messages.begin(),
                                         conversation.messages.begin() + static_cast<std::ptrdiff_t>(messages))));
  variables.emplace_back("tools", conversation.tools);
  variables.emplace_back("documents", conversation.documents);
  variables.emplace_back("add_generation_prompt", TemplateValue::Bool(add_generation_prompt));
  return RenderTemplate(*statements, TemplateValue::Of(std::move(variables)), date_, conversation.bytes);
}

absl::StatusOr<std::string> ChatTemplate::Render(const Conversation& conversation, bool add_generation_prompt) const {
  SHALE_ASSIGN_OR_RETURN(RenderedTemplate rendered,
                         Render(Numbered(conversation), conversation.messages.size(), add_generation_prompt));
  return std::move(rendered.text.bytes);
}

absl::StatusOr<ChatText> ChatTemplate::RenderAll(const Conversation& conversation) const {
  const NumberedConversation numbered = Numbered(conversation);
  SHALE_ASSIGN_OR_RETURN(RenderedTemplate all, Render(numbered, numbered.messages.size(), false));
  ChatText chat = {.said = SaidParts(all.text), .left_out = LeftOut(numbered, all.text)};
  chat.text = std::move(all.text.bytes);
  return chat;
}

absl::StatusOr<std::vector<size_t>> ChatTemplate::FindTurns(const Conversation& conversation,
                                                            const NumberedConversation& numbered,
                                                            const TemplateText& text) const {
  // To render all beginnings of a conversation takes quadratic time.
  constexpr int64_t kMostSteps = 20'000'000, kBytesOfStep = 256;
  int64_t steps = 0;
  TurnFinder finder(numbered, text);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    if (conversation.messages[i].role() != "assistant") continue;
    SHALE_ASSIGN_OR_RETURN(const RenderedTemplate before, Render(numbered, i, true));
    SHALE_ASSIGN_OR_RETURN(const RenderedTemplate shorter, Render(numbered, i + 1, false));
    for (const RenderedTemplate* one : {&before, &shorter}) {
      steps += one->steps + std::ssize(one->text.bytes) / kBytesOfStep;
    }
    if (steps > kMostSteps) {
      return absl::InvalidArgumentError(
          "the conversation is too long for a template that does not mark answers ({% generation %}): to find them "
          "takes too many steps; divide it");
    }
    SHALE_RETURN_IF_ERROR(finder.Add(i, before.text, shorter.text, conversation.messages[i].counts));
  }
  return finder.TakeTurns();
}

absl::StatusOr<ChatText> ChatTemplate::RenderWithTurns(const Conversation& conversation) const {
  const NumberedConversation numbered = Numbered(conversation);
  SHALE_ASSIGN_OR_RETURN(const Statements statements, For(numbered));
  SHALE_ASSIGN_OR_RETURN(RenderedTemplate all, Render(numbered, numbered.messages.size(), false));
  ChatText chat = {
      .marked = HasGeneration(*statements), .said = SaidParts(all.text), .left_out = LeftOut(numbered, all.text)};
  absl::StatusOr<std::vector<size_t>> turns =
      chat.marked ? MarkedTurns(conversation, numbered, all) : FindTurns(conversation, numbered, all.text);
  if (!turns.ok()) {
    if (chat.left_out.empty()) return turns.status();
    return absl::InvalidArgumentError(absl::StrCat(chat.left_out, "; besides, ", turns.status().message()));
  }
  chat.turns = *std::move(turns);
  chat.text = std::move(all.text.bytes);
  return chat;
}

}  // namespace shale
