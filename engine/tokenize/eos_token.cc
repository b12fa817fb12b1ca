#include "engine/tokenize/eos_token.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/io/file.h"

namespace shale {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{1} << 28;

}  // namespace

absl::StatusOr<int32_t> EosToken(const Tokenizer& tokenizer, const std::string& folder) {
  const std::string path = JoinPath(folder, "tokenizer_config.json");
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(bytes.status())) return -1;
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<Json> json = ParseStrictJson(*bytes);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
  Json end = json->value("eos_token", Json());
  if (end.is_object()) end = end.value("content", Json());
  if (end.is_null()) return -1;
  const int32_t token = end.is_string() ? tokenizer.Find(end.get<std::string>()) : -1;
  if (token >= 0) return token;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": eos_token: found ", ShownJson(end), ", which is no token of tokenizer.json"));
}

}  // namespace shale
