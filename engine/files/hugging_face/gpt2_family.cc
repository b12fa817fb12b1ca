// GPT-2.
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/layout_builder.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Reads a size that has two names. Both may be given if they agree.
int64_t Aliased(HfConfigReader& r, absl::string_view key, absl::string_view alias, int64_t max) {
  if (!r.top.Has(alias)) return r.top.Int(key, 1, max);
  const int64_t size = r.top.Int(alias, 1, max);
  if (r.top.Has(key) && r.top.Int(key, 1, max) != size) {
    r.top.Refuse(key, absl::StrCat(size, ", as ", alias, " has it"));
  }
  return size;
}

}  // namespace

void ReadGpt2(HfConfigReader& r) {
  r.c.norm = NormKind::kLayerNorm;
  r.c.position = PositionKind::kLearned;
  r.c.qkv_bias = r.c.linear_bias = true;
  // transformers also accepts the names of these four sizes that other families use.
  r.c.width = Aliased(r, "n_embd", "hidden_size", kMaxHfWidth);
  r.c.layers = Aliased(r, "n_layer", "num_hidden_layers", kMaxHfLayers);
  r.c.heads = r.c.kv_heads = Aliased(r, "n_head", "num_attention_heads", kMaxHfHeads);
  r.c.max_positions = Aliased(r, "n_positions", "max_position_embeddings", kMaxHfTokens);
  r.c.head_width = r.WidthOfHeads("n_embd");
  r.c.hidden = r.top.IntOr("n_inner", 4 * r.c.width, 1, kMaxHfHidden);
  r.c.norm_epsilon = r.top.NumberOr("layer_norm_epsilon", 1e-5, 1e-30, 1);
  r.c.tied_head = r.top.BoolOr("tie_word_embeddings", true);
  r.ReadGelu("activation_function", "gelu_new");
  r.top.Demand("scale_attn_weights", true, true, "because the engine scales by the root of the head width");
  r.top.Demand("scale_attn_by_inverse_layer_idx", false, false, "");
}

void WriteGpt2(HfConfigWriter& w) {
  for (const absl::string_view alias :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}) {
    w.Erase(alias);
  }
  w.Set("n_embd", w.c.width);
  w.Set("n_layer", w.c.layers);
  w.Set("n_head", w.c.heads);
  w.Set("n_positions", w.c.max_positions);
  w.Set("n_inner", w.c.hidden);
  w.Set("layer_norm_epsilon", w.c.norm_epsilon);
  w.WriteGelu("activation_function", "gelu_new");
}

absl::Status CheckGpt2(HfModelType type, const DecoderConfig& c) {
  SHALE_RETURN_IF_ERROR(CheckLayerNormed(type, c));
  SHALE_RETURN_IF_ERROR(CheckPlainAttention(type, c));
  if (c.position != PositionKind::kLearned) return RefuseHf(type, "rotary positions");
  if (c.parallel_block) return RefuseHf(type, "a parallel block");
  if (!c.qkv_bias || !c.linear_bias) return RefuseHf(type, "linear layers without bias");
  if (c.kv_heads != c.heads) return RefuseHf(type, absl::StrCat("kv_heads ", c.kv_heads, " for heads ", c.heads));
  return absl::OkStatus();
}

void LayOutGpt2(HfLayoutBuilder& b) {
  const int64_t C = b.c.width, F = b.c.hidden;
  b.layout.prefix = "transformer.";
  b.AddEmbedding("wte.weight");
  b.Add("embedding.positions", {b.c.max_positions, C}, {{"wpe.weight", b.c.max_positions}});
  for (int64_t layer = 0; layer < b.c.layers; ++layer) {
    const std::string ours = absl::StrCat("blocks.", layer, "."), theirs = absl::StrCat("h.", layer, ".");
    constexpr bool kTransposed = true;
    b.AddNorm(ours + "attention_norm", theirs + "ln_1");
    b.AddLinear(ours + "attention.qkv", 3 * C, C, true, theirs + "attn.c_attn", kTransposed);
    b.AddLinear(ours + "attention.output", C, C, true, theirs + "attn.c_proj", kTransposed);
    b.AddNorm(ours + "ffn_norm", theirs + "ln_2");
    b.AddLinear(ours + "ffn.up", F, C, true, theirs + "mlp.c_fc", kTransposed);
    b.AddLinear(ours + "ffn.down", C, F, true, theirs + "mlp.c_proj", kTransposed);
  }
  b.AddNorm("final_norm", "ln_f");
}

}  // namespace shale
