// Falcon: the first architecture, of 7B and RW, and the newer one.
#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/layout_builder.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Adds the QKV projection. The engine stores all query heads, then all key heads, then all value heads. Falcon
// stores, for each of the G groups, its H / G query heads, its key head and its value head.
void AddFalconQkv(HfLayoutBuilder& b, const std::string& name, std::vector<int64_t> shape, const std::string& tensor) {
  const int64_t G = b.c.kv_heads, D = b.c.head_width, queries = b.c.heads / G * D, group = queries + 2 * D;
  b.AddParameter(name, std::move(shape));
  b.AddTensor(tensor, G * group, /*transposed=*/false);
  for (int64_t g = 0; g < G; ++g) b.AddPiece(g * group, queries);
  for (int64_t g = 0; g < G; ++g) b.AddPiece(g * group + queries, D);
  for (int64_t g = 0; g < G; ++g) b.AddPiece(g * group + queries + D, D);
}

// Returns whether a config that CheckFalcon allows needs Falcon's newer architecture, which alone can have several
// key/value heads that are fewer than the query heads, or separate norms for attention and feed-forward in a parallel
// block.
bool IsNewFalcon(const DecoderConfig& c) {
  return c.parallel_block && (c.parallel_norms || (c.kv_heads != 1 && c.kv_heads != c.heads));
}

}  // namespace

void ReadFalcon(HfConfigReader& r) {
  r.c.norm = NormKind::kLayerNorm;
  r.ReadSizes();
  if (r.top.Has("n_embed")) r.top.Refuse("n_embed", "nothing; give hidden_size");
  r.c.head_width = r.WidthOfHeads("hidden_size");
  r.c.hidden = r.top.IntOr("ffn_hidden_size", 4 * r.c.width, 1, kMaxHfHidden);
  r.c.max_positions = r.top.IntOr("max_position_embeddings", 2048, 1, kMaxHfTokens);
  r.c.norm_epsilon = r.top.NumberOr("layer_norm_epsilon", 1e-5, 1e-30, 1);
  r.c.tied_head = r.top.BoolOr("tie_word_embeddings", true);
  r.c.qkv_bias = r.c.linear_bias = r.top.BoolOr("bias", false);
  r.ReadGelu("activation", "gelu");
  ReadHfRope(r.top, r.errors, &r.c);
  r.top.Demand("alibi", false, false, "positions must be rotary");
  r.top.Demand("apply_residual_connection_post_layernorm", false, false, "");

  const bool newer = r.top.BoolOr("new_decoder_architecture", false);
  const bool parallel = r.top.BoolOr("parallel_attn", true);
  const bool multi_query = r.top.BoolOr("multi_query", true);
  const int64_t kv_heads = r.top.IntOr("num_kv_heads", r.c.heads, 1, kMaxHfHeads);
  const int64_t norms = r.top.IntOr("num_ln_in_parallel_attn", newer ? 2 : 1, 1, 2);
  r.c.parallel_block = newer || parallel;
  r.c.parallel_norms = newer && norms == 2;
  if (newer) {
    r.c.kv_heads = kv_heads;
    if (!parallel) r.top.Refuse("parallel_attn", "true, as new_decoder_architecture has it");
    return;
  }
  r.c.kv_heads = multi_query ? 1 : r.c.heads;
  if (!multi_query && kv_heads != r.c.heads) {
    r.top.Refuse("num_kv_heads", absl::StrCat(r.c.heads, ", the heads, without multi_query"));
  }
  if (parallel && norms == 2) {
    r.top.Refuse("num_ln_in_parallel_attn", "1, unless new_decoder_architecture is true");
  }
}

void WriteFalcon(HfConfigWriter& w) {
  const bool newer = IsNewFalcon(w.c);
  w.WriteSizes();
  w.Set("num_kv_heads", w.c.kv_heads);
  w.Set("ffn_hidden_size", w.c.hidden);
  w.Set("max_position_embeddings", w.c.max_positions);
  w.Set("layer_norm_epsilon", w.c.norm_epsilon);
  w.WriteGelu("activation", "gelu");
  w.Set("alibi", false);
  w.Set("bias", w.c.linear_bias);
  w.Set("new_decoder_architecture", newer);
  w.Set("multi_query", !newer && w.c.kv_heads == 1);
  w.Set("parallel_attn", w.c.parallel_block);
  w.Erase("num_ln_in_parallel_attn");
  if (newer) w.Set("num_ln_in_parallel_attn", w.c.parallel_norms ? 2 : 1);
  w.WriteRope();
}

absl::Status CheckFalcon(HfModelType type, const DecoderConfig& c) {
  SHALE_RETURN_IF_ERROR(CheckLayerNormed(type, c));
  SHALE_RETURN_IF_ERROR(CheckPlainAttention(type, c));
  if (c.position != PositionKind::kRotary) return RefuseHf(type, "learned positions");
  if (c.qkv_bias != c.linear_bias) return RefuseHf(type, kHalfBiased);
  if (!c.parallel_block && c.kv_heads != 1 && c.kv_heads != c.heads) {
    return RefuseHf(type, absl::StrCat("kv_heads ", c.kv_heads, " of heads ", c.heads, " without a parallel block"));
  }
  return absl::OkStatus();
}

void LayOutFalcon(HfLayoutBuilder& b) {
  const int64_t C = b.c.width, F = b.c.hidden, QKV = (b.c.heads + 2 * b.c.kv_heads) * b.c.head_width;
  b.layout.prefix = "transformer.";
  b.AddEmbedding("word_embeddings.weight");
  for (int64_t layer = 0; layer < b.c.layers; ++layer) {
    const std::string ours = absl::StrCat("blocks.", layer, "."), theirs = absl::StrCat("h.", layer, ".");
    const std::string qkv = theirs + "self_attention.query_key_value";
    b.AddNorm(ours + "attention_norm", theirs + (b.c.parallel_norms ? "ln_attn" : "input_layernorm"));
    AddFalconQkv(b, ours + "attention.qkv.weight", {QKV, C}, qkv + ".weight");
    if (b.c.qkv_bias) AddFalconQkv(b, ours + "attention.qkv.bias", {QKV}, qkv + ".bias");
    b.AddLinear(ours + "attention.output", C, C, b.c.linear_bias, theirs + "self_attention.dense");
    if (b.c.parallel_norms) {
      b.AddNorm(ours + "ffn_norm", theirs + "ln_mlp");
    } else if (!b.c.parallel_block) {
      b.AddNorm(ours + "ffn_norm", theirs + "post_attention_layernorm");
    }
    b.AddLinear(ours + "ffn.up", F, C, b.c.linear_bias, theirs + "mlp.dense_h_to_4h");
    b.AddLinear(ours + "ffn.down", C, F, b.c.linear_bias, theirs + "mlp.dense_4h_to_h");
  }
  b.AddNorm("final_norm", "ln_f");
}

}  // namespace shale
