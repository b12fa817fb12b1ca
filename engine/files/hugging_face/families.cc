#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/model/adapter.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/family.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr DropoutKey kOfLlamaLike[] = {{"attention_dropout", 0}};
constexpr DropoutKey kOfGpt2[] = {{"attn_pdrop", 0.1}, {"embd_pdrop", 0.1}, {"resid_pdrop", 0.1}};
constexpr DropoutKey kOfFalcon[] = {{"attention_dropout", 0}, {"hidden_dropout", 0}};
constexpr DropoutKey kOfStarcoder2[] = {{"attention_dropout", 0}, {"residual_dropout", 0}, {"embedding_dropout", 0}};

bool LayerNormed(const DecoderConfig& c) { return c.norm == NormKind::kLayerNorm; }
bool LikeGpt2(const DecoderConfig& c) { return LayerNormed(c) && c.position == PositionKind::kLearned; }
bool LikeFalcon(const DecoderConfig& c) { return LayerNormed(c) && !LikeGpt2(c) && !LikeStarcoder2(c); }
bool LikeGemma(const DecoderConfig& c) {
  return !LayerNormed(c) && (c.post_norms || c.activation == Activation::kGeGlu);
}
bool LikeGemma2(const DecoderConfig& c) { return LikeGemma(c) && !c.qk_norm; }
bool LikeGemma3(const DecoderConfig& c) { return LikeGemma(c) && c.qk_norm; }
bool Plain(const DecoderConfig& c) { return !LayerNormed(c) && !LikeGemma(c); }
bool LikeQwen3(const DecoderConfig& c) { return Plain(c) && c.qk_norm; }
bool LikeQwen2(const DecoderConfig& c) { return Plain(c) && !c.qk_norm && c.qkv_bias && !c.linear_bias; }
bool LikeLlama(const DecoderConfig& c) { return Plain(c) && !LikeQwen3(c) && !LikeQwen2(c); }

// In the order of HfModelType.
constexpr HfFamily kFamilies[] = {
    {HfModelType::kLlama, "llama", "LlamaForCausalLM", kOfLlamaLike, LikeLlama, ReadLlama, CheckLlama, WriteLlama,
     LayOutLlama},
    {HfModelType::kMistral, "mistral", "MistralForCausalLM", kOfLlamaLike, LikeLlama, ReadLlama, CheckLlama, WriteLlama,
     LayOutLlama},
    {HfModelType::kQwen2, "qwen2", "Qwen2ForCausalLM", kOfLlamaLike, LikeQwen2, ReadLlama, CheckLlama, WriteLlama,
     LayOutLlama},
    {HfModelType::kQwen3, "qwen3", "Qwen3ForCausalLM", kOfLlamaLike, LikeQwen3, ReadLlama, CheckLlama, WriteLlama,
     LayOutLlama},
    {HfModelType::kGpt2, "gpt2", "GPT2LMHeadModel", kOfGpt2, LikeGpt2, ReadGpt2, CheckGpt2, WriteGpt2, LayOutGpt2},
    {HfModelType::kFalcon, "falcon", "FalconForCausalLM", kOfFalcon, LikeFalcon, ReadFalcon, CheckFalcon, WriteFalcon,
     LayOutFalcon},
    {HfModelType::kGemma2, "gemma2", "Gemma2ForCausalLM", kOfLlamaLike, LikeGemma2, ReadGemma, CheckGemma, WriteGemma,
     LayOutLlama},
    {HfModelType::kGemma3, "gemma3_text", "Gemma3ForCausalLM", kOfLlamaLike, LikeGemma3, ReadGemma, CheckGemma,
     WriteGemma, LayOutLlama},
    {HfModelType::kStarcoder2, "starcoder2", "Starcoder2ForCausalLM", kOfStarcoder2, LikeStarcoder2, ReadStarcoder2,
     CheckStarcoder2, WriteStarcoder2, LayOutLlama},
};

}  // namespace

absl::Span<const HfFamily> HfFamilies() { return kFamilies; }

const HfFamily& FamilyOf(HfModelType type) {
  const HfFamily& family = kFamilies[static_cast<size_t>(type)];
  SHALE_CHECK(family.type == type) << "the families are in another order than their types";
  return family;
}

absl::string_view ToString(HfModelType type) { return FamilyOf(type).name; }

std::optional<HfModelType> FindHfModelType(absl::string_view name) {
  for (const HfFamily& family : kFamilies) {
    if (name == family.name) return family.type;
  }
  return std::nullopt;
}

absl::Status RefuseHf(HfModelType type, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("no ", ToString(type), " model of transformers has ", reason));
}

absl::Status CheckPlainBlocks(HfModelType type, const DecoderConfig& c) {
  if (c.activation == Activation::kGeGlu) return RefuseHf(type, "GEGLU");
  if (c.post_norms) return RefuseHf(type, "post_norms");
  if (c.norm_adds_one) return RefuseHf(type, "norm_adds_one");
  if (c.scaled_embedding) return RefuseHf(type, "scaled_embedding");
  if (c.window_rope_theta != 0) return RefuseHf(type, "a window_rope_theta");
  if (c.score_width != 0 && c.score_width != c.head_width) return RefuseHf(type, "a score_width");
  if (c.attention_cap != 0 || c.logit_cap != 0) return RefuseHf(type, "soft caps");
  const bool some_layers = type == HfModelType::kQwen2 || type == HfModelType::kQwen3;
  if (!c.layer_pattern.empty() && !some_layers) return RefuseHf(type, "an attention_window in only some layers");
  return absl::OkStatus();
}

absl::Status CheckLayerNormed(HfModelType type, const DecoderConfig& c) {
  SHALE_RETURN_IF_ERROR(CheckPlainBlocks(type, c));
  if (c.norm != NormKind::kLayerNorm) return RefuseHf(type, "RMSNorm");
  if (c.activation == Activation::kSwiGlu) return RefuseHf(type, "SwiGLU");
  if (c.qk_norm) return RefuseHf(type, "qk_norm");
  return absl::OkStatus();
}

absl::Status CheckPlainAttention(HfModelType type, const DecoderConfig& c) {
  if (c.attention_window != 0) return RefuseHf(type, "an attention_window");
  if (c.heads * c.head_width != c.width) {
    return RefuseHf(type,
                    absl::StrCat("heads ", c.heads, " x head_width ", c.head_width, " other than width ", c.width));
  }
  return absl::OkStatus();
}

absl::Status CheckExpressible(HfModelType type, const DecoderConfig& c) {
  if (c.vocabulary < 1 || c.width < 1 || c.layers < 1 || c.heads < 1 || c.kv_heads < 1 || c.head_width < 1 ||
      c.hidden < 1 || c.max_positions < 1) {
    return absl::InvalidArgumentError("the model's sizes are not all decided and positive");
  }
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads ", c.heads, " is not a multiple of kv_heads ", c.kv_heads));
  }
  if (c.parallel_norms && !c.parallel_block) return absl::InvalidArgumentError("parallel_norms needs parallel_block");
  return FamilyOf(type).check(type, c);
}

absl::StatusOr<HfModelType> ChooseHfModelType(const DecoderConfig& c) {
  absl::Status first;
  for (const HfFamily& family : kFamilies) {
    if (!family.resembles(c)) continue;
    const absl::Status status = CheckExpressible(family.type, c);
    if (status.ok()) return family.type;
    first.Update(status);
  }
  return first;
}

}  // namespace shale
