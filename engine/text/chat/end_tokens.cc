#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/io/file.h"
#include "engine/text/chat/chat_template.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxGenerationConfigBytes = int64_t{1} << 28;

// Returns the object in a file; an empty one if there is no file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxGenerationConfigBytes);
  if (absl::IsNotFound(bytes.status())) return Json::object();
  SHALE_RETURN_IF_ERROR(bytes.status());
  absl::StatusOr<Json> json = ParseStrictJson(*bytes);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
}

// Appends the token, or the tokens, that a value names.
absl::Status AddTokens(const std::string& path, const Json& value, std::vector<int32_t>* tokens) {
  const std::vector<Json> all = value.is_array() ? value.get<std::vector<Json>>() : std::vector<Json>{value};
  for (const Json& token : all) {
    const bool fits = token.is_number_unsigned() && token.get<uint64_t>() <= std::numeric_limits<int32_t>::max();
    if (!fits) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": eos_token_id: found ", ShownJson(value), "; wanted a token or a list of them"));
    }
    tokens->push_back(token.get<int32_t>());
  }
  return absl::OkStatus();
}

// Returns the tokens that end a text of the model in a folder. Sets `*path` to the file that names them.
absl::StatusOr<std::vector<int32_t>> EndsOfModel(const std::string& folder, std::string* path) {
  std::vector<int32_t> tokens;
  for (const char* name : {"generation_config.json", "config.json"}) {
    *path = JoinPath(folder, name);
    SHALE_ASSIGN_OR_RETURN(const Json json, ReadObject(*path));
    const Json end = json.value("eos_token_id", Json());
    if (!end.is_null()) SHALE_RETURN_IF_ERROR(AddTokens(*path, end, &tokens));
    if (!tokens.empty()) break;
  }
  return tokens;
}

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

absl::StatusOr<int32_t> DocumentEnd(const Tokenizer& tokenizer, const std::string& folder) {
  const int32_t token = tokenizer.SpecialToken("eos_token");
  if (token >= 0) return token;
  std::string path;
  SHALE_ASSIGN_OR_RETURN(const std::vector<int32_t> ends, EndsOfModel(folder, &path));
  if (ends.empty()) return -1;
  if (ends[0] < tokenizer.vocabulary()) return ends[0];
  return absl::InvalidArgumentError(absl::StrCat(path, ": eos_token_id: found ", ends[0],
                                                 ", which is no token of tokenizer.json, whose largest is ",
                                                 tokenizer.vocabulary() - 1));
}

absl::StatusOr<std::vector<int32_t>> EndTokens(const std::string& folder, const Tokenizer& tokenizer) {
  std::string path;
  SHALE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, EndsOfModel(folder, &path));
  const int32_t token = tokenizer.SpecialToken("eos_token");
  if (token >= 0 && std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  return tokens;
}

absl::StatusOr<ChatTurn> FindTurn(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  SHALE_ASSIGN_OR_RETURN(ChatTurn turn, TextsOf(chat));
  if (!turn.end.empty()) turn.end_token = tokenizer.Find(turn.end);
  return turn;
}

}  // namespace shale
