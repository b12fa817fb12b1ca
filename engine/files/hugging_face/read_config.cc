#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {

void HfConfigReader::ReadSizes() {
  c.width = top.Int("hidden_size", 1, kMaxHfWidth);
  c.layers = top.Int("num_hidden_layers", 1, kMaxHfLayers);
  c.heads = top.Int("num_attention_heads", 1, kMaxHfHeads);
}

int64_t HfConfigReader::WidthOfHeads(absl::string_view width_key) {
  if (c.width % c.heads != 0) {
    errors.Add(width_key, absl::StrCat(c.width), absl::StrCat("a multiple of the ", c.heads, " heads"));
  }
  return std::max<int64_t>(1, c.width / c.heads);
}

void HfConfigReader::ReadGelu(absl::string_view key, absl::string_view absent) {
  const std::string name = top.StringOr(key, absent);
  if (name == "gelu" || name == "gelu_python") {
    c.activation = Activation::kGeluErf;
    return;
  }
  c.activation = Activation::kGeluTanh;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_python_tanh") return;
  top.Refuse(key, "\"gelu\", \"gelu_new\" or \"gelu_pytorch_tanh\"");
}

void HfConfigReader::ReadLayerTypes(int64_t window, bool must_slide) {
  const Json& types = *top.Find("layer_types");
  bool fits = types.is_array() && types.size() == static_cast<size_t>(c.layers);
  c.layer_pattern.clear();
  for (size_t i = 0; fits && i < types.size(); ++i) {
    const bool slides = types[i] == "sliding_attention";
    fits = slides ? window > 0 : !must_slide && types[i] == "full_attention";
    c.layer_pattern += slides ? 'W' : 'F';
  }
  if (fits) return;
  top.Refuse("layer_types", absl::StrCat(c.layers, " times ", must_slide ? "" : "\"full_attention\"",
                                         window > 0 && !must_slide ? " or " : "",
                                         window > 0 ? "\"sliding_attention\"" : "", ", as the window is set"));
}

namespace {

// Returns what model_type may be.
std::string AllowedTypes(absl::string_view found) {
  if (found == "gemma3") {
    return "gemma3_text; this folder also has the images of a multimodal model: save its text part, a "
           "Gemma3ForCausalLM of config.text_config, in a folder of its own";
  }
  return absl::StrJoin(HfFamilies(), ", ",
                       [](std::string* out, const HfFamily& family) { absl::StrAppend(out, family.name); });
}

// Refuses what no family has.
void CheckCommon(const Json& json, const HfFields& top, HfErrors& errors) {
  for (const absl::string_view key : {"quantization_config", "compression_config"}) {
    if (top.Has(key)) top.Refuse(key, "nothing; weights must be F32, F16 or BF16");
  }
  for (const absl::string_view key : {"is_encoder_decoder", "add_cross_attention"}) {
    top.Demand(key, false, false, "the engine trains decoders alone");
  }
  // No family lists this key, but transformers makes the masks of all of them by it. There, null is false.
  if (json.contains("is_causal") && json["is_causal"] != true) {
    errors.Add("is_causal", ShownJson(json["is_causal"]), "true, because a decoder sees no later tokens");
  }
}

DecoderConfig ReadFields(const Json& json, HfErrors& errors) {
  const HfFields top(json, "", errors);
  const std::string name = top.StringOr("model_type", "");
  const std::optional<HfModelType> type = FindHfModelType(name);
  if (!type.has_value()) {
    top.Refuse("model_type", AllowedTypes(name));
    return {};
  }
  CheckCommon(json, top, errors);
  const HfFamily& family = FamilyOf(*type);
  ReadDropout(top, family.dropout);  // Only checks the values.
  HfConfigReader reader{.json = json, .errors = errors, .top = top, .type = *type};
  DecoderConfig& c = reader.c;
  c.vocabulary = top.Int("vocab_size", 1, kMaxHfVocabulary);
  c.init_std = top.NumberOr("initializer_range", 0.02, 0, 100);
  family.read(reader);
  if (errors.empty() && c.heads % c.kv_heads != 0) {
    errors.Add(*type == HfModelType::kFalcon ? "num_kv_heads" : "num_key_value_heads", absl::StrCat(c.kv_heads),
               absl::StrCat("a divisor of num_attention_heads ", c.heads));
  }
  if (errors.empty() && c.head_width % 2 != 0) {
    errors.Add("head_dim", absl::StrCat(c.head_width, " (hidden size over heads, unless given)"), "an even number");
  }
  return c;
}

}  // namespace

absl::StatusOr<DecoderConfig> ParseHfConfig(absl::string_view text, const std::string& path) {
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
  HfErrors errors(path);
  const DecoderConfig config = ReadFields(*json, errors);
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  return config;
}

absl::StatusOr<DecoderConfig> ReadHfConfig(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::string path, ResolveInFolder(folder, "config.json"));
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxHfConfigBytes));
  return ParseHfConfig(text, JoinPath(folder, "config.json"));
}

}  // namespace shale
