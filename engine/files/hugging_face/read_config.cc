#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/config_parts.h"
#include "engine/files/hugging_face/strict_json.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Upper limits, which are those of the same fields in a job (engine/plan/config/decoder_spec.cc).
constexpr int64_t kMaxVocabulary = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr int64_t kMaxHidden = int64_t{1} << 26;
constexpr int64_t kMaxLayers = int64_t{1} << 16;
constexpr int64_t kMaxHeads = int64_t{1} << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 24;

// The defaults of transformers for absent keys.
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultMaxWindowLayers = 28;

class Reader {
 public:
  Reader(const Json& json, HfErrors& errors) : json_(json), errors_(errors), top_(json, "", errors) {}

  DecoderConfig Read() {
    const std::string name = top_.StringOr("model_type", "");
    const std::optional<HfModelType> type = FindHfModelType(name);
    if (!type.has_value()) {
      top_.Refuse("model_type", absl::StrJoin(kAllHfModelTypes, ", ", [](std::string* out, HfModelType known) {
                    absl::StrAppend(out, ToString(known));
                  }));
      return c_;
    }
    type_ = *type;
    for (const absl::string_view key : {"quantization_config", "compression_config"}) {
      if (top_.Has(key)) top_.Refuse(key, "nothing; weights must be F32, F16 or BF16");
    }
    for (const absl::string_view key : {"is_encoder_decoder", "add_cross_attention"}) {
      top_.Demand(key, false, false, "the engine trains decoders alone");
    }
    // No family lists this key, but transformers makes the masks of all of them by it. There, null is false.
    if (json_.contains("is_causal") && json_["is_causal"] != true) {
      errors_.Add("is_causal", ShownJson(json_["is_causal"]), "true, because a decoder sees no later tokens");
    }
    ReadDropout(top_, DropoutKeysOf(type_));  // Only checks the values.
    c_.vocabulary = top_.Int("vocab_size", 1, kMaxVocabulary);
    c_.init_std = top_.NumberOr("initializer_range", 0.02, 0, 100);
    if (type_ == HfModelType::kGpt2) {
      ReadGpt2();
    } else if (type_ == HfModelType::kFalcon) {
      ReadFalcon();
    } else {
      ReadLlamaLike();
    }
    if (errors_.empty() && c_.heads % c_.kv_heads != 0) {
      errors_.Add(type_ == HfModelType::kFalcon ? "num_kv_heads" : "num_key_value_heads", absl::StrCat(c_.kv_heads),
                  absl::StrCat("a divisor of num_attention_heads ", c_.heads));
    }
    if (errors_.empty() && c_.head_width % 2 != 0) {
      errors_.Add("head_dim", absl::StrCat(c_.head_width, " (hidden size over heads, unless given)"), "an even number");
    }
    return c_;
  }

 private:
  void ReadSizes() {
    c_.width = top_.Int("hidden_size", 1, kMaxWidth);
    c_.layers = top_.Int("num_hidden_layers", 1, kMaxLayers);
    c_.heads = top_.Int("num_attention_heads", 1, kMaxHeads);
  }

  // Returns width / heads. Adds an error if heads does not divide width.
  int64_t WidthOfHeads(absl::string_view width_key) {
    if (c_.width % c_.heads != 0) {
      errors_.Add(width_key, absl::StrCat(c_.width), absl::StrCat("a multiple of the ", c_.heads, " heads"));
    }
    return std::max<int64_t>(1, c_.width / c_.heads);
  }

  void ReadLlamaLike() {
    ReadSizes();
    c_.hidden = top_.Int("intermediate_size", 1, kMaxHidden);
    int64_t absent_kv_heads = c_.heads, absent_positions = 2048;
    if (type_ == HfModelType::kMistral) {
      absent_kv_heads = 8;
      absent_positions = 131072;
    } else if (type_ != HfModelType::kLlama) {
      absent_kv_heads = 32;
      absent_positions = 32768;
    }
    // In every family, null means as many key/value heads as heads.
    if (json_.contains("num_key_value_heads")) absent_kv_heads = c_.heads;
    c_.kv_heads = top_.IntOr("num_key_value_heads", absent_kv_heads, 1, kMaxHeads);
    if (top_.Has("head_dim")) {
      c_.head_width = top_.Int("head_dim", 1, kMaxWidth);
    } else {
      c_.head_width = type_ == HfModelType::kQwen3 && !json_.contains("head_dim") ? 128 : WidthOfHeads("hidden_size");
    }
    c_.max_positions = top_.IntOr("max_position_embeddings", absent_positions, 1, kMaxTokens);
    c_.norm_epsilon = top_.NumberOr("rms_norm_eps", 1e-6, 1e-30, 1);
    c_.tied_head = top_.BoolOr("tie_word_embeddings", false);
    const std::string activation = top_.StringOr("hidden_act", "silu");
    if (activation != "silu" && activation != "swish") top_.Refuse("hidden_act", "\"silu\"");
    c_.qk_norm = type_ == HfModelType::kQwen3;
    c_.qkv_bias = type_ == HfModelType::kQwen2;
    if (type_ == HfModelType::kLlama) {
      c_.qkv_bias = c_.linear_bias = top_.BoolOr("attention_bias", false);
      top_.Demand("mlp_bias", c_.linear_bias, false, "the same as attention_bias; the engine has both or neither");
    } else if (type_ == HfModelType::kQwen3) {
      top_.Demand("attention_bias", false, false, "because the engine would add biases to the feed-forward layers too");
    }
    ReadHfRope(top_, errors_, &c_);
    ReadWindow();
  }

  void ReadGpt2() {
    c_.norm = NormKind::kLayerNorm;
    c_.position = PositionKind::kLearned;
    c_.qkv_bias = c_.linear_bias = true;
    // transformers also accepts the names of these four sizes that other families use.
    c_.width = Aliased("n_embd", "hidden_size", kMaxWidth);
    c_.layers = Aliased("n_layer", "num_hidden_layers", kMaxLayers);
    c_.heads = c_.kv_heads = Aliased("n_head", "num_attention_heads", kMaxHeads);
    c_.max_positions = Aliased("n_positions", "max_position_embeddings", kMaxTokens);
    c_.head_width = WidthOfHeads("n_embd");
    c_.hidden = top_.IntOr("n_inner", 4 * c_.width, 1, kMaxHidden);
    c_.norm_epsilon = top_.NumberOr("layer_norm_epsilon", 1e-5, 1e-30, 1);
    c_.tied_head = top_.BoolOr("tie_word_embeddings", true);
    ReadGelu("activation_function", "gelu_new");
    top_.Demand("scale_attn_weights", true, true, "because the engine scales by the root of the head width");
    top_.Demand("scale_attn_by_inverse_layer_idx", false, false, "");
  }

  void ReadFalcon() {
    c_.norm = NormKind::kLayerNorm;
    ReadSizes();
    if (top_.Has("n_embed")) top_.Refuse("n_embed", "nothing; give hidden_size");
    c_.head_width = WidthOfHeads("hidden_size");
    c_.hidden = top_.IntOr("ffn_hidden_size", 4 * c_.width, 1, kMaxHidden);
    c_.max_positions = top_.IntOr("max_position_embeddings", 2048, 1, kMaxTokens);
    c_.norm_epsilon = top_.NumberOr("layer_norm_epsilon", 1e-5, 1e-30, 1);
    c_.tied_head = top_.BoolOr("tie_word_embeddings", true);
    c_.qkv_bias = c_.linear_bias = top_.BoolOr("bias", false);
    ReadGelu("activation", "gelu");
    ReadHfRope(top_, errors_, &c_);
    top_.Demand("alibi", false, false, "positions must be rotary");
    top_.Demand("apply_residual_connection_post_layernorm", false, false, "");

    const bool newer = top_.BoolOr("new_decoder_architecture", false);
    const bool parallel = top_.BoolOr("parallel_attn", true);
    const bool multi_query = top_.BoolOr("multi_query", true);
    const int64_t kv_heads = top_.IntOr("num_kv_heads", c_.heads, 1, kMaxHeads);
    const int64_t norms = top_.IntOr("num_ln_in_parallel_attn", newer ? 2 : 1, 1, 2);
    c_.parallel_block = newer || parallel;
    c_.parallel_norms = newer && norms == 2;
    if (newer) {
      c_.kv_heads = kv_heads;
      if (!parallel) top_.Refuse("parallel_attn", "true, as new_decoder_architecture has it");
      return;
    }
    c_.kv_heads = multi_query ? 1 : c_.heads;
    if (!multi_query && kv_heads != c_.heads) {
      top_.Refuse("num_kv_heads", absl::StrCat(c_.heads, ", the heads, without multi_query"));
    }
    if (parallel && norms == 2) {
      top_.Refuse("num_ln_in_parallel_attn", "1, unless new_decoder_architecture is true");
    }
  }

  // Reads a size that has two names. Both may be given if they agree.
  int64_t Aliased(absl::string_view key, absl::string_view alias, int64_t max) {
    if (!top_.Has(alias)) return top_.Int(key, 1, max);
    const int64_t size = top_.Int(alias, 1, max);
    if (top_.Has(key) && top_.Int(key, 1, max) != size) {
      top_.Refuse(key, absl::StrCat(size, ", as ", alias, " has it"));
    }
    return size;
  }

  void ReadGelu(absl::string_view key, absl::string_view absent) {
    const std::string name = top_.StringOr(key, absent);
    if (name == "gelu" || name == "gelu_python") {
      c_.activation = Activation::kGeluErf;
      return;
    }
    c_.activation = Activation::kGeluTanh;
    if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_python_tanh") return;
    top_.Refuse(key, "\"gelu\", \"gelu_new\" or \"gelu_pytorch_tanh\"");
  }

  void ReadWindow() {
    // null means no window, and an absent key means the default of transformers.
    int64_t window = json_.contains("sliding_window") ? 0 : kDefaultWindow;
    bool every_layer = false, no_layer = true;
    if (type_ == HfModelType::kMistral) {
      window = top_.IntOr("sliding_window", window, 1, kMaxTokens);
      every_layer = window > 0;
      no_layer = !every_layer;
    } else if (type_ != HfModelType::kLlama && top_.BoolOr("use_sliding_window", false)) {
      window = top_.IntOr("sliding_window", window, 1, kMaxTokens);
      const int64_t first = top_.IntOr("max_window_layers", kDefaultMaxWindowLayers, 0, kMaxLayers);
      every_layer = window > 0 && first == 0;
      no_layer = window == 0 || first >= c_.layers;
    }
    if (top_.Has("layer_types")) return ReadLayerTypes(window);
    if (!every_layer && !no_layer) {
      top_.Refuse("max_window_layers", absl::StrCat("0 (every layer has the window) or at least ", c_.layers,
                                                    " (none has); the engine has one kind of layer"));
    }
    c_.attention_window = every_layer ? window : 0;
  }

  void ReadLayerTypes(int64_t window) {
    const Json& types = *top_.Find("layer_types");
    const bool may_slide = type_ == HfModelType::kMistral ? window > 0 : top_.BoolOr("use_sliding_window", false);
    // Mistral uses its window in every layer, whatever the list says.
    const bool must_slide = type_ == HfModelType::kMistral && may_slide;
    bool fits = types.is_array() && types.size() == static_cast<size_t>(c_.layers);
    for (size_t i = 0; fits && i < types.size(); ++i) fits = types[i].is_string() && types[i] == types[0];
    const bool slides = fits && types[0] == "sliding_attention";
    fits = fits && (slides ? may_slide && window > 0 : !must_slide && types[0] == "full_attention");
    if (!fits) {
      top_.Refuse("layer_types",
                  absl::StrCat(c_.layers, " times ", must_slide ? "" : "\"full_attention\"",
                               may_slide && !must_slide ? " or " : "", may_slide ? "\"sliding_attention\"" : "",
                               ", as the window is set; the engine has one kind of layer"));
    }
    c_.attention_window = slides ? window : 0;
  }

  const Json& json_;
  HfErrors& errors_;
  const HfFields top_;
  HfModelType type_ = HfModelType::kLlama;
  DecoderConfig c_;
};

}  // namespace

absl::StatusOr<DecoderConfig> ParseHfConfig(absl::string_view text, const std::string& path) {
  absl::StatusOr<Json> json = ParseStrictJson(text);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", json.status().message()));
  HfErrors errors(path);
  DecoderConfig config = Reader(*json, errors).Read();
  SHALE_RETURN_IF_ERROR(errors.ToStatus());
  return config;
}

absl::StatusOr<DecoderConfig> ReadHfConfig(const std::string& folder) {
  SHALE_ASSIGN_OR_RETURN(const std::string path, ResolveInFolder(folder, "config.json"));
  SHALE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxHfConfigBytes));
  return ParseHfConfig(text, JoinPath(folder, "config.json"));
}

}  // namespace shale
