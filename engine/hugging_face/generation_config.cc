#include "engine/hugging_face/generation_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::StatusOr<Json> Parse(absl::string_view text, const char* file) {
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (json.ok()) return json;
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", json.status().message()));
}

}  // namespace

absl::StatusOr<std::optional<std::string>> CompletedGenerationConfig(const std::optional<std::string>& text,
                                                                     absl::string_view config,
                                                                     const std::vector<int32_t>& end_tokens) {
  Json json = Json::object();
  if (text.has_value()) {
    SHALE_ASSIGN_OR_RETURN(json, Parse(*text, "generation_config.json"));
  } else {
    SHALE_ASSIGN_OR_RETURN(const Json of_model, Parse(config, "config.json"));
    for (const char* name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (const Json id = of_model.value(name, Json()); !id.is_null()) json[name] = id;
    }
  }
  const Json found = json.value("eos_token_id", Json());
  Json ends = found.is_array() ? found : found.is_null() ? Json::array() : Json::array({found});
  bool complete = true;
  for (const int32_t token : end_tokens) {
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) continue;
    complete = false;
    ends.push_back(token);
  }
  if (complete) return std::optional<std::string>();
  json["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  return std::optional<std::string>(json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
}

}  // namespace shale
