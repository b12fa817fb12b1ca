#include "engine/hugging_face/index.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/hugging_face/strict_json.h"
#include "engine/text/quote.h"
#include "kernels/check.h"

namespace shale {

absl::Status CheckShardName(absl::string_view name) {
  constexpr size_t kMaxNameBytes = 255;  // The limit of common file systems.
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the file name ", ShortJsonQuote(name, kMaxNameBytes), " ", why,
                                                   "; a shard is a .safetensors file beside its index"));
  };
  if (name.size() > kMaxNameBytes) return refuse("is too long");
  for (const unsigned char c : name) {
    if (c < 0x20 || c == 0x7F) return refuse("has control characters");
    if (c == '/' || c == '\\') return refuse("is a path");
  }
  if (absl::StartsWith(name, ".")) return refuse("begins with a dot");
  if (!absl::EndsWith(name, ".safetensors")) return refuse("does not end in .safetensors");
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text) {
  if (text.size() > kMaxSafetensorsIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", text.size(), " bytes; at most ", kMaxSafetensorsIndexBytes, " are read"));
  }
  SHALE_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(text));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    return absl::InvalidArgumentError("it has no weight_map that maps tensor names to file names");
  }
  SafetensorsIndex index;
  for (const auto& item : map->items()) {
    const std::string& tensor = item.key();
    const Json& file = item.value();
    const auto fail = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("weight_map of ", ShownJson(Json(tensor)), ": ", what));
    };
    if (!file.is_string()) return fail(absl::StrCat("found ", ShownJson(file), "; expected a file name"));
    const std::string& name = file.get_ref<const std::string&>();
    if (absl::Status status = CheckShardName(name); !status.ok()) return fail(status.message());
    index.files.emplace(tensor, name);
  }
  return index;
}

}  // namespace shale
