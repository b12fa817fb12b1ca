#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/strict_json.h"
#include "kernels/check.h"

namespace shale {

void HfConfigWriter::WriteSizes() {
  Set("hidden_size", c.width);
  Set("num_hidden_layers", c.layers);
  Set("num_attention_heads", c.heads);
}

void HfConfigWriter::WriteGelu(absl::string_view key, absl::string_view tanh_name) {
  if (c.activation == Activation::kGeluErf) return Set(key, "gelu");
  Set(key, std::string(type == HfModelType::kFalcon ? "gelu_pytorch_tanh" : tanh_name));
}

void HfConfigWriter::WriteRope() {
  for (const absl::string_view key : {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"}) {
    Erase(key);
  }
  Set("rope_theta", c.rope_theta);
  if (!c.rope_scaling.has_value()) return Set("rope_scaling", nullptr);
  Json scaling = Json::object();
  const bool linear = c.rope_scaling->kind == RopeScalingKind::kLinear;
  scaling["rope_type"] = linear ? "linear" : "llama3";
  scaling["factor"] = c.rope_scaling->factor;
  if (linear) return Set("rope_scaling", scaling);
  scaling["low_freq_factor"] = c.rope_scaling->low_freq_factor;
  scaling["high_freq_factor"] = c.rope_scaling->high_freq_factor;
  scaling["original_max_position_embeddings"] = c.rope_scaling->original_context;
  Set("rope_scaling", scaling);
}

void HfConfigWriter::WriteLayerTypes() {
  Json types = Json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    types.push_back(c.Block(layer).attention_window > 0 ? "sliding_attention" : "full_attention");
  }
  Set("layer_types", std::move(types));
}

namespace {

absl::StatusOr<absl::string_view> DTypeName(SafetensorsDType dtype) {
  switch (dtype) {
    case SafetensorsDType::kF32: return absl::string_view("float32");
    case SafetensorsDType::kF16: return absl::string_view("float16");
    case SafetensorsDType::kBF16: return absl::string_view("bfloat16");
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("weights cannot be written as ", ToString(dtype), "; allowed: F32, F16, BF16"));
  }
}

Json Write(const DecoderConfig& config, HfModelType type, Json base, absl::string_view dtype) {
  const bool based = !base.empty();
  const HfFamily& family = FamilyOf(type);
  HfConfigWriter w{.c = config, .type = type, .json = std::move(base)};
  // auto_map refers to model code in the model's repository, which is not copied.
  w.Erase("auto_map");
  if (!based) {
    w.Set("architectures", Json::array({std::string(family.architecture)}));
    for (const absl::string_view key : {"bos_token_id", "eos_token_id", "pad_token_id"}) w.Set(key, nullptr);
    for (const DropoutKey& dropout : family.dropout) w.Set(dropout.key, 0.0);
  }
  w.Set("model_type", std::string(family.name));
  w.Set("vocab_size", config.vocabulary);
  w.Set("initializer_range", config.init_std);
  family.write(w);
  w.Set("tie_word_embeddings", config.tied_head);
  // Writes torch_dtype, the older name of dtype, because every release of transformers reads it.
  w.Erase("dtype");
  w.Set("torch_dtype", std::string(dtype));
  return std::move(w.json);
}

}  // namespace

absl::StatusOr<std::string> HfConfigText(const DecoderConfig& config, const HfConfigOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const absl::string_view dtype, DTypeName(options.dtype));
  Json base = Json::object();
  HfModelType type;
  if (options.base.has_value()) {
    SHALE_ASSIGN_OR_RETURN(base, ParseStrictJson(*options.base));
    const auto name = base.find("model_type");
    const std::optional<HfModelType> found =
        name != base.end() && name->is_string() ? FindHfModelType(name->get<std::string>()) : std::nullopt;
    if (!found.has_value()) {
      return absl::InvalidArgumentError("the config.json that the model came from has no known model_type");
    }
    type = *found;
    SHALE_RETURN_IF_ERROR(CheckExpressible(type, config));
  } else {
    SHALE_ASSIGN_OR_RETURN(type, ChooseHfModelType(config));
  }
  Json json = Write(config, type, std::move(base), dtype);
  if (!options.base.has_value() && options.eos_token >= 0) json["eos_token_id"] = options.eos_token;
  return json.dump(2) + "\n";
}

}  // namespace shale
