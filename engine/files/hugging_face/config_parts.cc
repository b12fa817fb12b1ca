#include "engine/files/hugging_face/config_parts.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr double kDefaultThetaOfKinds = 1000000;  // Of layers with full attention, where others have their own.
constexpr double kMaxTheta = 1e12;
constexpr int64_t kMaxRopeTokens = int64_t{1} << 24;

void CheckWholeRotation(const HfFields& fields) {
  if (fields.NumberOr("partial_rotary_factor", 1, 0, 1) != 1) {
    fields.Refuse("partial_rotary_factor", "1; the engine rotates full heads");
  }
}

constexpr absl::string_view kOriginal = "original_max_position_embeddings";

void ReadLlama3(const HfFields& rope, DecoderConfig* config) {
  RopeScalingConfig& scaling = config->rope_scaling.emplace();
  scaling.factor = rope.Number("factor", 1, 1e6);
  scaling.low_freq_factor = rope.Number("low_freq_factor", 1e-6, 1e6);
  scaling.high_freq_factor = rope.Number("high_freq_factor", 1e-6, 1e6);
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    rope.Refuse("low_freq_factor", absl::StrCat("a number below high_freq_factor ", scaling.high_freq_factor));
  }
  scaling.original_context = rope.IntOr(kOriginal, config->max_positions, 1, kMaxRopeTokens);
}

// Returns the member that names the type of a scaling: rope_type, or else `type`, its older name.
absl::string_view TypeKey(const HfFields& rope) { return rope.Has("rope_type") ? "rope_type" : "type"; }

// Sets the scaling that `rope`, the fields of `given`, describes. Refuses members that are not known.
void ReadScaling(const Json& given, const HfFields& rope, DecoderConfig* config) {
  std::vector<absl::string_view> known = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  const absl::string_view type_key = TypeKey(rope);
  const std::string type = rope.StringOr(type_key, "default");
  if (type != "default" && type != "llama3" && type != "linear") {
    return rope.Refuse(type_key, "\"default\", \"llama3\" or \"linear\"");
  }
  if (type != "default") known.push_back("factor");
  if (type == "llama3") {
    known.insert(known.end(), {"low_freq_factor", "high_freq_factor", kOriginal});
  }
  for (const auto& [name, value] : given.items()) {
    if (std::find(known.begin(), known.end(), absl::string_view(name)) == known.end()) {
      rope.Refuse(name, absl::StrCat("for rope_type ", type, " only ", absl::StrJoin(known, ", ")));
    }
  }
  if (type == "llama3") ReadLlama3(rope, config);
  if (type == "linear") {
    config->rope_scaling = RopeScalingConfig{.kind = RopeScalingKind::kLinear, .factor = rope.Number("factor", 1, 1e6)};
  }
}

// Reads the object of one kind of layer: of those with full attention, or of those with a window.
void ReadKind(const Json& given, const HfFields& rope, bool full, DecoderConfig* config) {
  double& theta = full ? config->rope_theta : config->window_rope_theta;
  theta = rope.NumberOr("rope_theta", theta, 1, kMaxTheta);
  CheckWholeRotation(rope);
  if (full) return ReadScaling(given, rope, config);
  DecoderConfig of_windows = *config;
  of_windows.rope_scaling.reset();
  ReadScaling(given, rope, &of_windows);
  if (of_windows.rope_scaling) {
    rope.Refuse(TypeKey(rope), "\"default\", because layers with a window have no scaling here");
  }
}

constexpr DropoutKey kOfAdapters[] = {{"lora_dropout", 0}};

// Reads a file whose dropout was checked already.
absl::StatusOr<Json> ReadJson(const std::string& folder, absl::string_view name) {
  SHALE_ASSIGN_OR_RETURN(const std::string path, ResolveInFolder(folder, name));
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxHfConfigBytes));
  return ParseStrictJson(text);
}

}  // namespace

void ReadHfRope(const HfFields& top, HfErrors& errors, DecoderConfig* config) {
  const Json* older = top.Find("rope_scaling");
  const Json* newer = top.Find("rope_parameters");
  const absl::string_view key = newer != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* given = newer != nullptr ? newer : older;
  config->rope_theta = top.NumberOr("rope_theta", kDefaultTheta, 1, kMaxTheta);
  CheckWholeRotation(top);
  if (given == nullptr) return;
  if (older != nullptr && newer != nullptr && *older != *newer) {
    top.Refuse("rope_scaling", "the same as rope_parameters, or nothing");
  }
  if (!given->is_object()) return top.Refuse(key, "an object");
  const HfFields rope(*given, absl::StrCat(key, "."), errors);
  if (rope.Has("rope_theta")) {
    const double theta = rope.Number("rope_theta", 1, kMaxTheta);
    if (top.Has("rope_theta") && theta != config->rope_theta) {
      top.Refuse("rope_theta", absl::StrCat(theta, ", as ", key, " has it"));
    }
    config->rope_theta = theta;
  }
  CheckWholeRotation(rope);
  ReadScaling(*given, rope, config);
  // A value outside of the scaling wins, as in transformers.
  if (config->rope_scaling && config->rope_scaling->kind == RopeScalingKind::kLlama3 && top.Has(kOriginal)) {
    config->rope_scaling->original_context = top.Int(kOriginal, 1, kMaxRopeTokens);
  }
}

void ReadHfRopeOfKinds(const HfFields& top, HfErrors& errors, DecoderConfig* config) {
  config->rope_theta = top.NumberOr("rope_theta", kDefaultThetaOfKinds, 1, kMaxTheta);
  config->window_rope_theta = top.NumberOr("rope_local_base_freq", kDefaultTheta, 1, kMaxTheta);
  CheckWholeRotation(top);
  const Json* older = top.Find("rope_scaling");
  const Json* kinds = top.Find("rope_parameters");
  if (older != nullptr && kinds != nullptr) top.Refuse("rope_scaling", "nothing beside rope_parameters");
  if (older != nullptr) {
    if (!older->is_object()) return top.Refuse("rope_scaling", "an object");
    const HfFields rope(*older, "rope_scaling.", errors);
    // transformers adds its members to {"rope_type": "default"}, so that an older spelling changes nothing.
    if (TypeKey(rope) == "type" && rope.StringOr("type", "default") != "default") {
      return rope.Refuse("type", "the name rope_type, because transformers ignores this one here");
    }
    return ReadKind(*older, rope, /*full=*/true, config);
  }
  if (kinds == nullptr) return;
  if (!kinds->is_object()) return top.Refuse("rope_parameters", "an object");
  for (const auto& [name, value] : kinds->items()) {
    const std::string key = absl::StrCat("rope_parameters.", name);
    // transformers ignores members of another name, such as a scaling that stands here.
    if ((name != "full_attention" && name != "sliding_attention") || !value.is_object()) {
      errors.Add(key, ShownJson(value), "full_attention and sliding_attention, an object each");
      continue;
    }
    ReadKind(value, HfFields(value, key + ".", errors), name == "full_attention", config);
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
  return ReadDropout(fields, FamilyOf(*type).dropout);
}

absl::StatusOr<std::string> HfAdapterDropout(const std::string& folder) {
  SHALE_RETURN_IF_ERROR(ReadHfAdapterConfig(folder).status());
  SHALE_ASSIGN_OR_RETURN(const Json json, ReadJson(folder, "adapter_config.json"));
  HfErrors errors(folder);
  return ReadDropout(HfFields(json, "", errors), kOfAdapters);
}

}  // namespace shale
