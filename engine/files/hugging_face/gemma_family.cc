// Gemma 2 and Gemma 3 (text).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/family.h"

namespace shale {
namespace {

// null and an absent key of Gemma 3 mean that there is no cap.
double ReadCap(const HfConfigReader& r, absl::string_view key, double absent) {
  return r.top.NumberOr(key, r.json.contains(key) ? 0 : absent, 1e-6, 1e6);
}

}  // namespace

void ReadGemma(HfConfigReader& r) {
  const bool third = r.type == HfModelType::kGemma3;
  r.ReadSizes();
  r.WidthOfHeads("hidden_size");  // transformers refuses other widths, although head_dim decides.
  r.c.hidden = r.top.Int("intermediate_size", 1, kMaxHfHidden);
  r.c.kv_heads = r.top.IntOr("num_key_value_heads", 4, 1, kMaxHfHeads);
  r.c.head_width = r.top.IntOr("head_dim", 256, 1, kMaxHfWidth);
  r.c.max_positions = r.top.IntOr("max_position_embeddings", third ? 131072 : 8192, 1, kMaxHfTokens);
  r.c.norm_epsilon = r.top.NumberOr("rms_norm_eps", 1e-6, 1e-30, 1);
  r.c.tied_head = r.top.BoolOr("tie_word_embeddings", true);
  // Folders of 2024 have hidden_act too, which transformers does not read.
  const std::string activation = r.top.StringOr("hidden_activation", "gelu_pytorch_tanh");
  if (activation != "gelu_pytorch_tanh") r.top.Refuse("hidden_activation", "\"gelu_pytorch_tanh\"");
  r.c.activation = Activation::kGeGlu;
  r.c.post_norms = r.c.norm_adds_one = r.c.scaled_embedding = true;
  r.c.qk_norm = third;
  r.c.score_width = r.top.IntOr("query_pre_attn_scalar", 256, 1, kMaxHfWidth);
  if (third && r.top.Has("attn_logit_softcapping")) {
    r.top.Refuse("attn_logit_softcapping", "null, because transformers does not read it here");
  }
  r.c.attention_cap = third ? 0 : ReadCap(r, "attn_logit_softcapping", 50);
  r.c.logit_cap = ReadCap(r, "final_logit_softcapping", third ? 0 : 30);
  r.top.Demand("attention_bias", false, false, "because the engine would add biases to the feed-forward layers too");
  r.top.Demand("use_bidirectional_attention", false, false, "because a decoder sees no later tokens");
  if (third) {
    ReadHfRopeOfKinds(r.top, r.errors, &r.c);
    if (r.c.window_rope_theta == r.c.rope_theta && !r.c.rope_scaling) r.c.window_rope_theta = 0;
  } else {
    ReadHfRope(r.top, r.errors, &r.c);
  }
  if (r.json.contains("sliding_window") && !r.top.Has("sliding_window")) {
    r.errors.Add("sliding_window", "null", "a number of tokens, because transformers fails without one");
  }
  r.c.attention_window = r.top.IntOr("sliding_window", kDefaultHfWindow, 1, kMaxHfTokens);
  const int64_t period = third ? r.top.IntOr("sliding_window_pattern", 6, 1, kMaxHfLayers) : 2;
  for (int64_t layer = 1; layer <= r.c.layers; ++layer) r.c.layer_pattern += layer % period != 0 ? 'W' : 'F';
  if (r.top.Has("layer_types")) r.ReadLayerTypes(r.c.attention_window, /*must_slide=*/false);
  if (r.errors.empty()) r.c.Normalize();
}

void WriteGemma(HfConfigWriter& w) {
  w.WriteSizes();
  w.Set("intermediate_size", w.c.hidden);
  w.Set("num_key_value_heads", w.c.kv_heads);
  w.Set("head_dim", w.c.head_width);
  w.Set("max_position_embeddings", w.c.max_positions);
  w.Set("rms_norm_eps", w.c.norm_epsilon);
  w.Set("hidden_activation", "gelu_pytorch_tanh");
  w.Set("attention_bias", false);
  w.Set("query_pre_attn_scalar", w.c.score_width > 0 ? w.c.score_width : w.c.head_width);
  w.SetOrNull("attn_logit_softcapping", w.c.attention_cap);
  w.SetOrNull("final_logit_softcapping", w.c.logit_cap);
  w.WriteRope();
  if (w.type == HfModelType::kGemma3) {
    w.Set("rope_local_base_freq", w.c.window_rope_theta > 0 ? w.c.window_rope_theta : w.c.rope_theta);
  }
  // Without a window the list of layers says so, and the size means nothing; but an absent one would be the default.
  if (w.c.attention_window > 0 || w.json.value("sliding_window", Json()).is_null()) {
    w.Set("sliding_window", std::max<int64_t>(1, w.c.attention_window));
  }
  w.WriteLayerTypes();
  for (const absl::string_view key : {"sliding_window_pattern", "_sliding_window_pattern"}) w.Erase(key);
}

absl::Status CheckGemma(HfModelType type, const DecoderConfig& c) {
  if (c.norm != NormKind::kRmsNorm) return RefuseHf(type, "LayerNorm");
  if (c.position != PositionKind::kRotary) return RefuseHf(type, "learned positions");
  if (c.activation != Activation::kGeGlu) return RefuseHf(type, "an activation other than GEGLU");
  if (!c.post_norms || !c.norm_adds_one) return RefuseHf(type, "blocks without post_norms or norm_adds_one");
  if (!c.scaled_embedding) return RefuseHf(type, "embeddings without scaled_embedding");
  if (c.parallel_block) return RefuseHf(type, "a parallel block");
  if (c.qkv_bias || c.linear_bias) return RefuseHf(type, "biases");
  if (c.width % c.heads != 0) {
    return RefuseHf(type, absl::StrCat("width ", c.width, ", which is not a multiple of heads ", c.heads));
  }
  const bool third = type == HfModelType::kGemma3;
  if (c.qk_norm != third) return RefuseHf(type, third ? "queries and keys without qk_norm" : "qk_norm");
  if (third && c.attention_cap != 0) return RefuseHf(type, "a cap of attention's scores");
  if (!third && c.window_rope_theta != 0) return RefuseHf(type, "a window_rope_theta");
  if (third && c.attention_window > 0 && c.window_rope_theta == 0 && c.rope_scaling) {
    return RefuseHf(type, "rope_scaling in layers with a window; give window_rope_theta");
  }
  return absl::OkStatus();
}

}  // namespace shale
