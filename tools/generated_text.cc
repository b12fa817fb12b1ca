#include "tools/generated_text.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;

// Returns the object in a file; an empty one if there is no file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxFileBytes);
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

}  // namespace

GeneratedText::GeneratedText(const Tokenizer* tokenizer, bool is_text, bool skip_special,
                             std::vector<std::string> stop_strings)
    : is_text_(is_text), skip_special_(skip_special), stops_(std::move(stop_strings)) {
  if (tokenizer != nullptr) tokens_.emplace(*tokenizer, skip_special);
}

std::string GeneratedText::TextOf(int32_t token) {
  if (tokens_) return tokens_->Push(token);
  return is_text_ ? bytes_.Push(static_cast<uint8_t>(token)) : absl::StrCat(token, " ");
}

std::string GeneratedText::PushPrompt(int32_t token, bool written) {
  if (tokens_) tokens_->SkipSpecial(!written);
  std::string text = TextOf(token);
  if (tokens_) tokens_->SkipSpecial(skip_special_);
  return text;
}

std::string GeneratedText::Push(int32_t token) { return stops_.Push(TextOf(token)); }

std::string GeneratedText::Finish() {
  const std::string rest = stops_.Push(tokens_ ? tokens_->Finish() : bytes_.Finish());
  return rest + stops_.Finish();
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
  SHALE_ASSIGN_OR_RETURN(const Json config, ReadObject(JoinPath(folder, "tokenizer_config.json")));
  Json end = config.value("eos_token", Json());
  if (end.is_object()) end = end.value("content", Json());
  const int32_t token = end.is_string() ? tokenizer.Find(end.get<std::string>()) : -1;
  if (token >= 0 && std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  return tokens;
}

}  // namespace shale
