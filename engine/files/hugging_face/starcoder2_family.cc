// StarCoder 2.
#include "absl/strings/str_cat.h"
#include "engine/compile/model/adapter.h"
#include "engine/files/hugging_face/family.h"
#include "kernels/check.h"

namespace shale {

void ReadStarcoder2(HfConfigReader& r) {
  r.c.norm = NormKind::kLayerNorm;
  if (!r.top.Has("initializer_range")) r.c.init_std = 0.018042;
  r.ReadSizes();
  r.c.hidden = r.top.Int("intermediate_size", 1, kMaxHfHidden);
  r.c.kv_heads = r.top.IntOr("num_key_value_heads", 2, 1, kMaxHfHeads);
  r.c.head_width = r.top.Has("head_dim") ? r.top.Int("head_dim", 1, kMaxHfWidth) : r.WidthOfHeads("hidden_size");
  r.c.max_positions = r.top.IntOr("max_position_embeddings", 4096, 1, kMaxHfTokens);
  r.c.norm_epsilon = r.top.NumberOr("norm_epsilon", 1e-5, 1e-30, 1);
  r.c.tied_head = r.top.BoolOr("tie_word_embeddings", true);
  r.c.qkv_bias = r.c.linear_bias = r.top.BoolOr("use_bias", true);
  r.ReadGelu("hidden_act", "gelu_pytorch_tanh");
  ReadHfRope(r.top, r.errors, &r.c);
  r.c.attention_window = r.top.IntOr("sliding_window", 0, 1, kMaxHfTokens);
  // transformers uses the window in every layer, whatever the list says.
  if (r.top.Has("layer_types")) r.ReadLayerTypes(r.c.attention_window, /*must_slide=*/r.c.attention_window > 0);
  if (r.errors.empty()) r.c.Normalize();
  if (r.errors.empty() && !LikeStarcoder2(r.c)) {
    r.top.Refuse("num_key_value_heads", absl::StrCat("a number between 1 and ", r.c.heads,
                                                     ", the heads, without sliding_window: such blocks are Falcon's"));
  }
}

void WriteStarcoder2(HfConfigWriter& w) {
  w.WriteSizes();
  w.Set("intermediate_size", w.c.hidden);
  w.Set("num_key_value_heads", w.c.kv_heads);
  // The class does not define head_dim, but transformers reads it.
  if (w.json.contains("head_dim") || w.c.heads * w.c.head_width != w.c.width) w.Set("head_dim", w.c.head_width);
  w.Set("max_position_embeddings", w.c.max_positions);
  w.Set("norm_epsilon", w.c.norm_epsilon);
  w.WriteGelu("hidden_act", "gelu_pytorch_tanh");
  w.Set("use_bias", w.c.linear_bias);
  w.WriteRope();
  w.Erase("layer_types");
  if (w.c.attention_window > 0) {
    w.Set("sliding_window", w.c.attention_window);
  } else {
    w.Set("sliding_window", nullptr);
  }
}

absl::Status CheckStarcoder2(HfModelType type, const DecoderConfig& c) {
  SHALE_RETURN_IF_ERROR(CheckLayerNormed(type, c));
  if (c.position != PositionKind::kRotary) return RefuseHf(type, "learned positions");
  if (c.parallel_block) return RefuseHf(type, "a parallel block");
  if (c.qkv_bias != c.linear_bias) return RefuseHf(type, kHalfBiased);
  if (!LikeStarcoder2(c)) return RefuseHf(type, "blocks as Falcon has them");
  return absl::OkStatus();
}

}  // namespace shale
