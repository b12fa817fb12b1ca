#include "engine/tokenize/text_row.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/text/quote.h"
#include "engine/text/utf8.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::StatusOr<std::string> TextOf(const Json& row, const char* name) {
  const Json& value = row[name];
  if (value.is_string()) return value.get<std::string>();
  return absl::InvalidArgumentError(absl::StrCat("\"", name, "\": found ", ShownJson(value), "; wanted a string"));
}

// Reads the messages of a conversation: strings, of which a role and a content are required.
absl::StatusOr<std::vector<ChatMessage>> ReadMessages(const Json& list) {
  if (!list.is_array() || list.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"messages\": found ", ShownJson(list), "; wanted a list of messages"));
  }
  std::vector<ChatMessage> messages;
  for (const Json& one : list) {
    const std::string place = absl::StrCat("message ", messages.size(), ": ");
    if (!one.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, "found ", ShownJson(one), "; wanted an object with \"role\" and \"content\""));
    }
    ChatMessage message;
    for (const char* name : {"role", "content"}) {
      const auto found = one.find(name);
      if (found == one.end() || !found->is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(place, "\"", name, "\" is missing, or is not a string"));
      }
      (name[0] == 'r' ? message.role : message.content) = found->get<std::string>();
    }
    for (const auto& [name, value] : one.items()) {
      if (name == "role" || name == "content" || value.is_null()) continue;
      if (!value.is_string()) {
        return absl::InvalidArgumentError(
            absl::StrCat(place, Quoted(name), " is not supported: found ", ShownJson(value), "; wanted a string"));
      }
      message.others.emplace_back(name, value.get<std::string>());
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

absl::StatusOr<TextRow> ReadChat(const Json& row, LossOn loss_on, const ChatTemplate* chat) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, ReadMessages(row["messages"]));
  if (chat == nullptr) {
    return absl::FailedPreconditionError("\"messages\" need a chat template");
  }
  if (loss_on == LossOn::kAll) {
    SHALE_ASSIGN_OR_RETURN(std::string text, chat->RenderAll(messages));
    return TextRow{.text = std::move(text), .is_chat = true, .turns = {0}};
  }
  SHALE_ASSIGN_OR_RETURN(ChatText text, chat->RenderWithTurns(messages));
  if (text.turns.empty()) return absl::InvalidArgumentError("\"messages\": none is of the assistant");
  return TextRow{.text = std::move(text.text), .is_chat = true, .turns = std::move(text.turns)};
}

absl::StatusOr<Json> ParseRow(absl::string_view line) {
  if (!IsUtf8(line)) return absl::InvalidArgumentError("it is not UTF-8");
  return ParseStrictJson(line);
}

// Returns prompt and completion of a row, or none if the row has another form.
absl::StatusOr<std::optional<PromptRow>> PartsOf(const Json& json) {
  const bool has_other_form = json.contains("text") || json.contains("messages");
  if (has_other_form || !json.contains("prompt") || !json.contains("completion")) return std::nullopt;
  PromptRow row;
  SHALE_ASSIGN_OR_RETURN(row.prompt, TextOf(json, "prompt"));
  SHALE_ASSIGN_OR_RETURN(row.completion, TextOf(json, "completion"));
  if (row.completion.empty()) return absl::InvalidArgumentError("\"completion\" is empty");
  return row;
}

absl::StatusOr<TextRow> ReadRow(absl::string_view line, LossOn loss_on, const ChatTemplate* chat) {
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseRow(line));
  if (json.contains("text")) {
    SHALE_ASSIGN_OR_RETURN(std::string text, TextOf(json, "text"));
    return TextRow{.text = std::move(text), .turns = {0}};
  }
  if (json.contains("messages")) return ReadChat(json, loss_on, chat);
  SHALE_ASSIGN_OR_RETURN(const std::optional<PromptRow> parts, PartsOf(json));
  if (parts) {
    return TextRow{.text = parts->prompt + parts->completion,
                   .turns = {loss_on == LossOn::kAll ? 0 : parts->prompt.size()}};
  }
  return absl::InvalidArgumentError("it has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"");
}

bool IsChat(const Json& row) { return !row.contains("text") && row.contains("messages"); }

absl::StatusOr<std::vector<PromptRow>> Prompts(absl::string_view line, const ChatTemplate* chat) {
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseRow(line));
  std::vector<PromptRow> prompts;
  if (IsChat(json)) {
    SHALE_ASSIGN_OR_RETURN(const TextRow row, ReadChat(json, LossOn::kCompletions, chat));
    for (size_t i = 0; i < row.turns.size(); i += 2) {
      const size_t begin = row.turns[i], end = i + 1 < row.turns.size() ? row.turns[i + 1] : row.text.size();
      prompts.push_back({row.text.substr(0, begin), row.text.substr(begin, end - begin), /*is_chat=*/true});
    }
    return prompts;
  }
  SHALE_ASSIGN_OR_RETURN(std::optional<PromptRow> parts, PartsOf(json));
  if (parts) prompts.push_back(*std::move(parts));
  return prompts;
}

absl::StatusOr<bool> Asks(absl::string_view line) {
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseRow(line));
  if (!IsChat(json)) {
    SHALE_ASSIGN_OR_RETURN(const std::optional<PromptRow> parts, PartsOf(json));
    return parts.has_value();
  }
  SHALE_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, ReadMessages(json["messages"]));
  return std::any_of(messages.begin(), messages.end(), [](const ChatMessage& m) { return m.role == "assistant"; });
}

absl::StatusOr<std::string> Words(absl::string_view line) {
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseRow(line));
  if (!IsChat(json)) {
    SHALE_ASSIGN_OR_RETURN(TextRow row, ReadRow(line, LossOn::kAll, nullptr));
    return std::move(row.text);
  }
  SHALE_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, ReadMessages(json["messages"]));
  std::string text;
  for (const ChatMessage& message : messages) absl::StrAppend(&text, message.content, "\n");
  return text;
}

// Returns a value, or its error with file and line.
template <class T>
absl::StatusOr<T> At(const DocumentPiece& piece, absl::StatusOr<T> value) {
  if (value.ok()) return value;
  return absl::Status(value.status().code(), absl::StrCat(piece.Place(), ": ", value.status().message()));
}

}  // namespace

absl::StatusOr<TextRow> ReadTextRow(const DocumentPiece& piece, LossOn loss_on, const ChatTemplate* chat) {
  return At(piece, ReadRow(piece.text, loss_on, chat));
}

absl::StatusOr<std::vector<PromptRow>> ReadPrompts(const DocumentPiece& piece, const ChatTemplate* chat) {
  return At(piece, Prompts(piece.text, chat));
}

absl::StatusOr<bool> HasPrompts(const DocumentPiece& piece) { return At(piece, Asks(piece.text)); }

absl::StatusOr<std::string> WordsOfRow(const DocumentPiece& piece) { return At(piece, Words(piece.text)); }

}  // namespace shale
