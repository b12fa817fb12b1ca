// Llama, and the families that differ from it in a few keys: Mistral, Qwen 2 and Qwen 3.
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/layout_builder.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kDefaultMaxWindowLayers = 28;  // What transformers takes for an absent key.

void ReadWindow(HfConfigReader& r) {
  const bool mistral = r.type == HfModelType::kMistral;
  const bool slides = mistral || (r.type != HfModelType::kLlama && r.top.BoolOr("use_sliding_window", false));
  // null means no window, and an absent key means the default of transformers.
  int64_t window = r.json.contains("sliding_window") ? 0 : kDefaultHfWindow;
  window = slides ? r.top.IntOr("sliding_window", window, 1, kMaxHfTokens) : 0;
  const int64_t first =
      slides && !mistral ? r.top.IntOr("max_window_layers", kDefaultMaxWindowLayers, 0, kMaxHfLayers) : 0;
  r.c.attention_window = window;
  for (int64_t layer = 0; layer < r.c.layers; ++layer) r.c.layer_pattern += window > 0 && layer >= first ? 'W' : 'F';
  // Mistral uses its window in every layer, whatever the list says.
  if (r.top.Has("layer_types")) r.ReadLayerTypes(window, /*must_slide=*/mistral && window > 0);
  if (r.errors.empty()) r.c.Normalize();
}

void WriteWindow(HfConfigWriter& w) {
  if (w.type == HfModelType::kLlama) return w.Erase("layer_types");
  const bool slides = w.c.attention_window > 0;
  if (w.type == HfModelType::kMistral) {
    w.Erase("layer_types");
    if (slides) return w.Set("sliding_window", w.c.attention_window);
    return w.Set("sliding_window", nullptr);
  }
  w.Set("use_sliding_window", slides);
  w.Erase("layer_types");  // The other keys determine which layers have a window.
  if (!slides) return;
  w.Set("sliding_window", w.c.attention_window);
  int64_t full = 0;  // Before the first layer with a window.
  while (w.c.Block(full).attention_window == 0) ++full;
  w.Set("max_window_layers", full);
  bool others = false;
  for (int64_t layer = full; layer < w.c.layers; ++layer) others |= w.c.Block(layer).attention_window == 0;
  if (others) w.WriteLayerTypes();
}

}  // namespace

void ReadLlama(HfConfigReader& r) {
  r.ReadSizes();
  r.c.hidden = r.top.Int("intermediate_size", 1, kMaxHfHidden);
  int64_t absent_kv_heads = r.c.heads, absent_positions = 2048;
  if (r.type == HfModelType::kMistral) {
    absent_kv_heads = 8;
    absent_positions = 131072;
  } else if (r.type != HfModelType::kLlama) {
    absent_kv_heads = 32;
    absent_positions = 32768;
  }
  // In every family, null means as many key/value heads as heads.
  if (r.json.contains("num_key_value_heads")) absent_kv_heads = r.c.heads;
  r.c.kv_heads = r.top.IntOr("num_key_value_heads", absent_kv_heads, 1, kMaxHfHeads);
  if (r.top.Has("head_dim")) {
    r.c.head_width = r.top.Int("head_dim", 1, kMaxHfWidth);
  } else {
    r.c.head_width =
        r.type == HfModelType::kQwen3 && !r.json.contains("head_dim") ? 128 : r.WidthOfHeads("hidden_size");
  }
  r.c.max_positions = r.top.IntOr("max_position_embeddings", absent_positions, 1, kMaxHfTokens);
  r.c.norm_epsilon = r.top.NumberOr("rms_norm_eps", 1e-6, 1e-30, 1);
  r.c.tied_head = r.top.BoolOr("tie_word_embeddings", false);
  const std::string activation = r.top.StringOr("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") r.top.Refuse("hidden_act", "\"silu\"");
  r.c.qk_norm = r.type == HfModelType::kQwen3;
  r.c.qkv_bias = r.type == HfModelType::kQwen2;
  if (r.type == HfModelType::kLlama) {
    r.c.qkv_bias = r.c.linear_bias = r.top.BoolOr("attention_bias", false);
    r.top.Demand("mlp_bias", r.c.linear_bias, false, "the same as attention_bias; the engine has both or neither");
  } else if (r.type == HfModelType::kQwen3) {
    r.top.Demand("attention_bias", false, false, "because the engine would add biases to the feed-forward layers too");
  }
  ReadHfRope(r.top, r.errors, &r.c);
  ReadWindow(r);
}

void WriteLlama(HfConfigWriter& w) {
  w.WriteSizes();
  w.Set("intermediate_size", w.c.hidden);
  w.Set("num_key_value_heads", w.c.kv_heads);
  // Qwen 2 does not define head_dim, but transformers reads it.
  if (w.type != HfModelType::kQwen2 || w.json.contains("head_dim") || w.c.heads * w.c.head_width != w.c.width) {
    w.Set("head_dim", w.c.head_width);
  }
  w.Set("max_position_embeddings", w.c.max_positions);
  w.Set("rms_norm_eps", w.c.norm_epsilon);
  w.Set("hidden_act", "silu");
  if (w.type == HfModelType::kLlama || w.type == HfModelType::kQwen3) w.Set("attention_bias", w.c.qkv_bias);
  if (w.type == HfModelType::kLlama) w.Set("mlp_bias", w.c.linear_bias);
  w.WriteRope();
  WriteWindow(w);
}

absl::Status CheckLlama(HfModelType type, const DecoderConfig& c) {
  SHALE_RETURN_IF_ERROR(CheckPlainBlocks(type, c));
  if (c.norm != NormKind::kRmsNorm) return RefuseHf(type, "LayerNorm");
  if (c.position != PositionKind::kRotary) return RefuseHf(type, "learned positions");
  if (c.activation != Activation::kSwiGlu) return RefuseHf(type, "GELU");
  if (c.parallel_block) return RefuseHf(type, "a parallel block");
  if (c.qk_norm != (type == HfModelType::kQwen3)) {
    return RefuseHf(type, c.qk_norm ? "qk_norm" : "queries and keys without qk_norm");
  }
  if (type == HfModelType::kLlama) {
    if (c.qkv_bias != c.linear_bias) return RefuseHf(type, kHalfBiased);
    if (c.attention_window != 0) return RefuseHf(type, "an attention_window");
    if (c.width % c.heads != 0) {
      return RefuseHf(type, absl::StrCat("width ", c.width, ", which is not a multiple of heads ", c.heads));
    }
    return absl::OkStatus();
  }
  if (c.linear_bias) return RefuseHf(type, "linear_bias");
  if (c.qkv_bias != (type == HfModelType::kQwen2)) {
    return RefuseHf(type, c.qkv_bias ? "qkv_bias" : "queries, keys and values without qkv_bias");
  }
  return absl::OkStatus();
}

// H query heads, G key/value heads, D head width, C model width, F inner width.
void LayOutLlama(HfLayoutBuilder& b) {
  const int64_t HD = b.c.heads * b.c.head_width, GD = b.c.kv_heads * b.c.head_width, C = b.c.width, F = b.c.hidden;
  b.layout.prefix = "model.";
  b.AddEmbedding("embed_tokens.weight");
  for (int64_t layer = 0; layer < b.c.layers; ++layer) {
    const std::string ours = absl::StrCat("blocks.", layer, "."), theirs = absl::StrCat("layers.", layer, ".");
    const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
    b.AddNorm(ours + "attention_norm", theirs + "input_layernorm");
    b.AddLinear(ours + "attention.qkv", HD + 2 * GD, C, b.c.qkv_bias,
                {{attention + "q_proj", HD}, {attention + "k_proj", GD}, {attention + "v_proj", GD}});
    if (b.c.qk_norm) {
      for (const std::string norm : {"q_norm.weight", "k_norm.weight"}) {
        b.Add(ours + "attention." + norm, {b.c.head_width}, {{attention + norm, b.c.head_width}});
      }
    }
    b.AddLinear(ours + "attention.output", C, HD, b.c.linear_bias, attention + "o_proj");
    if (b.c.post_norms) b.AddNorm(ours + "attention_post_norm", theirs + "post_attention_layernorm");
    b.AddNorm(ours + "ffn_norm", theirs + (b.c.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm"));
    const bool gated = IsGated(b.c.activation);  // In all families but StarCoder 2.
    if (gated) {
      b.AddLinear(ours + "ffn.gate_up", 2 * F, C, b.c.linear_bias, {{mlp + "gate_proj", F}, {mlp + "up_proj", F}});
    } else {
      b.AddLinear(ours + "ffn.up", F, C, b.c.linear_bias, mlp + "c_fc");
    }
    b.AddLinear(ours + "ffn.down", C, F, b.c.linear_bias, mlp + (gated ? "down_proj" : "c_proj"));
    if (b.c.post_norms) b.AddNorm(ours + "ffn_post_norm", theirs + "post_feedforward_layernorm");
  }
  b.AddNorm("final_norm", "norm");
}

}  // namespace shale
