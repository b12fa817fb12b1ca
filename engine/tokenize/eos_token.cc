#include "engine/tokenize/eos_token.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 28;

// Returns the object in a file; an empty one if there is no file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(bytes.status())) return Json::object();
  SHALE_RETURN_IF_ERROR(bytes.status());
  absl::StatusOr<Json> json = ParseStrictJson(*bytes);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
}

// Returns the `eos_token` of tokenizer_config.json as it is written; null if there is none.
absl::StatusOr<Json> WrittenEosToken(const std::string& path) {
  SHALE_ASSIGN_OR_RETURN(const Json config, ReadObject(path));
  Json end = config.value("eos_token", Json());
  return end.is_object() ? end.value("content", Json()) : end;
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

}  // namespace

absl::StatusOr<int32_t> EosToken(const Tokenizer& tokenizer, const std::string& folder) {
  const std::string path = JoinPath(folder, "tokenizer_config.json");
  SHALE_ASSIGN_OR_RETURN(const Json end, WrittenEosToken(path));
  if (end.is_null()) return -1;
  const int32_t token = end.is_string() ? tokenizer.Find(end.get<std::string>()) : -1;
  if (token >= 0) return token;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": eos_token: found ", ShownJson(end), ", which is no token of tokenizer.json"));
}

absl::StatusOr<std::vector<int32_t>> EndTokens(const std::string& folder, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::string path = JoinPath(folder, name);
    SHALE_ASSIGN_OR_RETURN(const Json json, ReadObject(path));
    const Json end = json.value("eos_token_id", Json());
    if (!end.is_null()) SHALE_RETURN_IF_ERROR(AddTokens(path, end, &tokens));
    if (!tokens.empty()) break;
  }
  SHALE_ASSIGN_OR_RETURN(const Json end, WrittenEosToken(JoinPath(folder, "tokenizer_config.json")));
  const int32_t token = end.is_string() ? tokenizer.Find(end.get<std::string>()) : -1;
  if (token >= 0 && std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  return tokens;
}

}  // namespace shale
