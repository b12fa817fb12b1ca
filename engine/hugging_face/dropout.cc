#include "engine/hugging_face/dropout.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/hugging_face/adapter_config.h"
#include "engine/hugging_face/config.h"
#include "engine/hugging_face/folder_path.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr DropoutKey kOfLlamaLike[] = {{"attention_dropout", 0}};
constexpr DropoutKey kOfGpt2[] = {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}};
constexpr DropoutKey kOfFalcon[] = {{"attention_dropout", 0}, {"hidden_dropout", 0}};
constexpr DropoutKey kOfAdapters[] = {{"lora_dropout", 0}};

// Reads a file whose dropout was checked already.
absl::StatusOr<Json> ReadJson(const std::string& folder, absl::string_view name) {
  SHALE_ASSIGN_OR_RETURN(const std::string path, ResolveInFolder(folder, name));
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxHfConfigBytes));
  return ParseStrictJson(text);
}

}  // namespace

absl::Span<const DropoutKey> DropoutKeysOf(HfModelType type) {
  switch (type) {
    case HfModelType::kGpt2: return kOfGpt2;
    case HfModelType::kFalcon: return kOfFalcon;
    default: return kOfLlamaLike;
  }
}

absl::Span<const DropoutKey> AdapterDropoutKeys() { return kOfAdapters; }

std::string ReadDropout(const HfFields& fields, absl::Span<const DropoutKey> keys) {
  std::string found;
  for (const DropoutKey& key : keys) {
    const double share = fields.NumberOr(key.key, key.absent, 0, 1);
    if (share > 0) absl::StrAppend(&found, found.empty() ? "" : ", ", key.key, " ", share);
  }
  return found;
}

absl::StatusOr<std::string> HfDropout(const std::string& folder) {
  SHALE_RETURN_IF_ERROR(ReadHfConfig(folder).status());
  SHALE_ASSIGN_OR_RETURN(const Json json, ReadJson(folder, "config.json"));
  HfErrors errors(folder);
  const HfFields fields(json, "", errors);
  const std::optional<HfModelType> type = FindHfModelType(fields.StringOr("model_type", ""));
  SHALE_CHECK(type.has_value()) << folder;
  return ReadDropout(fields, DropoutKeysOf(*type));
}

absl::StatusOr<std::string> HfAdapterDropout(const std::string& folder) {
  SHALE_RETURN_IF_ERROR(ReadHfAdapterConfig(folder).status());
  SHALE_ASSIGN_OR_RETURN(const Json json, ReadJson(folder, "adapter_config.json"));
  HfErrors errors(folder);
  return ReadDropout(HfFields(json, "", errors), kOfAdapters);
}

}  // namespace shale
