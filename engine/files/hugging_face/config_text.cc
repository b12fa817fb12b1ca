#include <string>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/strict_json.h"
#include "kernels/check.h"

namespace shale {
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

// Writes the keys of a config over those of a base. Erases keys that would contradict the written ones or mislead a
// reader.
class Writer {
 public:
  Writer(const DecoderConfig& config, HfModelType type, Json base)
      : c_(config), type_(type), based_(!base.empty()), json_(std::move(base)) {}

  Json Write(absl::string_view dtype) {
    // auto_map refers to model code in the model's repository, which is not copied.
    Erase("auto_map");
    if (!based_) {
      Set("architectures", Json::array({std::string(ArchitectureOf(type_))}));
      for (const absl::string_view key : {"bos_token_id", "eos_token_id", "pad_token_id"}) Set(key, nullptr);
    }
    Set("model_type", std::string(ToString(type_)));
    Set("vocab_size", c_.vocabulary);
    Set("initializer_range", c_.init_std);
    if (type_ == HfModelType::kGpt2) {
      WriteGpt2();
    } else if (type_ == HfModelType::kFalcon) {
      WriteFalcon();
    } else {
      WriteLlamaLike();
    }
    Set("tie_word_embeddings", c_.tied_head);
    // Writes torch_dtype, the older name of dtype, because every release of transformers reads it.
    Erase("dtype");
    Set("torch_dtype", std::string(dtype));
    return std::move(json_);
  }

 private:
  template <typename T>
  void Set(absl::string_view key, T value) {
    json_[std::string(key)] = std::move(value);
  }
  void Erase(absl::string_view key) { json_.erase(std::string(key)); }

  void WriteLlamaLike() {
    Set("hidden_size", c_.width);
    Set("intermediate_size", c_.hidden);
    Set("num_hidden_layers", c_.layers);
    Set("num_attention_heads", c_.heads);
    Set("num_key_value_heads", c_.kv_heads);
    // Qwen 2 does not define head_dim, but transformers reads it.
    if (type_ != HfModelType::kQwen2 || json_.contains("head_dim") || c_.heads * c_.head_width != c_.width) {
      Set("head_dim", c_.head_width);
    }
    Set("max_position_embeddings", c_.max_positions);
    Set("rms_norm_eps", c_.norm_epsilon);
    Set("hidden_act", "silu");
    if (type_ == HfModelType::kLlama || type_ == HfModelType::kQwen3) Set("attention_bias", c_.qkv_bias);
    if (type_ == HfModelType::kLlama) Set("mlp_bias", c_.linear_bias);
    if (!based_) Set("attention_dropout", 0.0);
    WriteRope();
    WriteWindow();
  }

  void WriteGpt2() {
    for (const absl::string_view alias :
         {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
      Erase(alias);
    }
    Set("n_embd", c_.width);
    Set("n_layer", c_.layers);
    Set("n_head", c_.heads);
    Set("n_positions", c_.max_positions);
    Set("n_inner", c_.hidden);
    Set("layer_norm_epsilon", c_.norm_epsilon);
    WriteGelu("activation_function", "gelu_new");
    if (based_) return;
    for (const absl::string_view key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) Set(key, 0.0);
  }

  void WriteFalcon() {
    const bool newer = IsNewFalcon(c_);
    Set("hidden_size", c_.width);
    Set("num_hidden_layers", c_.layers);
    Set("num_attention_heads", c_.heads);
    Set("num_kv_heads", c_.kv_heads);
    Set("ffn_hidden_size", c_.hidden);
    Set("max_position_embeddings", c_.max_positions);
    Set("layer_norm_epsilon", c_.norm_epsilon);
    WriteGelu("activation", "gelu");
    Set("alibi", false);
    Set("bias", c_.linear_bias);
    Set("new_decoder_architecture", newer);
    Set("multi_query", !newer && c_.kv_heads == 1);
    Set("parallel_attn", c_.parallel_block);
    Erase("num_ln_in_parallel_attn");
    if (newer) Set("num_ln_in_parallel_attn", c_.parallel_norms ? 2 : 1);
    WriteRope();
    if (based_) return;
    for (const absl::string_view key : {"attention_dropout", "hidden_dropout"}) Set(key, 0.0);
  }

  void WriteGelu(absl::string_view key, absl::string_view tanh_name) {
    if (c_.activation == Activation::kGeluErf) return Set(key, "gelu");
    Set(key, std::string(type_ == HfModelType::kFalcon ? "gelu_pytorch_tanh" : tanh_name));
  }

  // Writes the older keys, whichever keys the base has, because every release of transformers reads them, and releases
  // before 5 read only them.
  void WriteRope() {
    for (const absl::string_view key : {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"}) {
      Erase(key);
    }
    Set("rope_theta", c_.rope_theta);
    if (!c_.rope_scaling.has_value()) return Set("rope_scaling", nullptr);
    Json scaling = Json::object();
    scaling["rope_type"] = "llama3";
    scaling["factor"] = c_.rope_scaling->factor;
    scaling["low_freq_factor"] = c_.rope_scaling->low_freq_factor;
    scaling["high_freq_factor"] = c_.rope_scaling->high_freq_factor;
    scaling["original_max_position_embeddings"] = c_.rope_scaling->original_context;
    Set("rope_scaling", scaling);
  }

  void WriteWindow() {
    if (type_ == HfModelType::kLlama) return Erase("layer_types");
    const bool slides = c_.attention_window > 0;
    if (type_ == HfModelType::kMistral) {
      Erase("layer_types");
      if (slides) return Set("sliding_window", c_.attention_window);
      return Set("sliding_window", nullptr);
    }
    Set("use_sliding_window", slides);
    Erase("layer_types");  // The other keys determine which layers have a window.
    if (!slides) return;
    Set("sliding_window", c_.attention_window);
    Set("max_window_layers", 0);
  }

  const DecoderConfig& c_;
  const HfModelType type_;
  const bool based_;
  Json json_;
};

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
  Json json = Writer(config, type, std::move(base)).Write(dtype);
  if (!options.base.has_value() && options.eos_token >= 0) json["eos_token_id"] = options.eos_token;
  return json.dump(2) + "\n";
}

}  // namespace shale
