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

}  // namespace shale
