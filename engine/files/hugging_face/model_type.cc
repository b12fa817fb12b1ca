#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/config.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr absl::string_view kHalfBiased = "only one of qkv_bias and linear_bias";

absl::Status Refuse(HfModelType type, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("no ", ToString(type), " model of transformers has ", reason));
}

absl::Status CheckLlamaLike(HfModelType type, const DecoderConfig& c) {
  if (c.norm != NormKind::kRmsNorm) return Refuse(type, "LayerNorm");
  if (c.position != PositionKind::kRotary) return Refuse(type, "learned positions");
  if (c.activation != Activation::kSwiGlu) return Refuse(type, "GELU");
  if (c.parallel_block) return Refuse(type, "a parallel block");
  if (c.qk_norm != (type == HfModelType::kQwen3)) {
    return Refuse(type, c.qk_norm ? "qk_norm" : "queries and keys without qk_norm");
  }
  if (type == HfModelType::kLlama) {
    if (c.qkv_bias != c.linear_bias) return Refuse(type, kHalfBiased);
    if (c.attention_window != 0) return Refuse(type, "an attention_window");
    if (c.width % c.heads != 0) {
      return Refuse(type, absl::StrCat("width ", c.width, ", which is not a multiple of heads ", c.heads));
    }
    return absl::OkStatus();
  }
  if (c.linear_bias) return Refuse(type, "linear_bias");
  if (c.qkv_bias != (type == HfModelType::kQwen2)) {
    return Refuse(type, c.qkv_bias ? "qkv_bias" : "queries, keys and values without qkv_bias");
  }
  return absl::OkStatus();
}

absl::Status CheckLayerNormed(HfModelType type, const DecoderConfig& c) {
  if (c.norm != NormKind::kLayerNorm) return Refuse(type, "RMSNorm");
  if (c.activation == Activation::kSwiGlu) return Refuse(type, "SwiGLU");
  if (c.qk_norm) return Refuse(type, "qk_norm");
  if (c.attention_window != 0) return Refuse(type, "an attention_window");
  if (c.heads * c.head_width != c.width) {
    return Refuse(type, absl::StrCat("heads ", c.heads, " x head_width ", c.head_width, " other than width ", c.width));
  }
  if (type == HfModelType::kGpt2) {
    if (c.position != PositionKind::kLearned) return Refuse(type, "rotary positions");
    if (c.parallel_block) return Refuse(type, "a parallel block");
    if (!c.qkv_bias || !c.linear_bias) return Refuse(type, "linear layers without bias");
    if (c.kv_heads != c.heads) return Refuse(type, absl::StrCat("kv_heads ", c.kv_heads, " for heads ", c.heads));
    return absl::OkStatus();
  }
  if (c.position != PositionKind::kRotary) return Refuse(type, "learned positions");
  if (c.qkv_bias != c.linear_bias) return Refuse(type, kHalfBiased);
  if (!c.parallel_block && c.kv_heads != 1 && c.kv_heads != c.heads) {
    return Refuse(type, absl::StrCat("kv_heads ", c.kv_heads, " of heads ", c.heads, " without a parallel block"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ToString(HfModelType type) {
  switch (type) {
    case HfModelType::kLlama: return "llama";
    case HfModelType::kMistral: return "mistral";
    case HfModelType::kQwen2: return "qwen2";
    case HfModelType::kQwen3: return "qwen3";
    case HfModelType::kGpt2: return "gpt2";
    case HfModelType::kFalcon: return "falcon";
  }
  return "?";
}

std::optional<HfModelType> FindHfModelType(absl::string_view name) {
  for (const HfModelType type : kAllHfModelTypes) {
    if (name == ToString(type)) return type;
  }
  return std::nullopt;
}

absl::string_view ArchitectureOf(HfModelType type) {
  switch (type) {
    case HfModelType::kLlama: return "LlamaForCausalLM";
    case HfModelType::kMistral: return "MistralForCausalLM";
    case HfModelType::kQwen2: return "Qwen2ForCausalLM";
    case HfModelType::kQwen3: return "Qwen3ForCausalLM";
    case HfModelType::kGpt2: return "GPT2LMHeadModel";
    case HfModelType::kFalcon: return "FalconForCausalLM";
  }
  return "?";
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
  if (type == HfModelType::kGpt2 || type == HfModelType::kFalcon) return CheckLayerNormed(type, c);
  return CheckLlamaLike(type, c);
}

absl::StatusOr<HfModelType> ChooseHfModelType(const DecoderConfig& c) {
  // The closest type comes first, because the error gives its reason.
  std::vector<HfModelType> candidates;
  if (c.norm == NormKind::kLayerNorm) {
    candidates = {c.position == PositionKind::kLearned ? HfModelType::kGpt2 : HfModelType::kFalcon};
  } else if (c.qk_norm) {
    candidates = {HfModelType::kQwen3};
  } else if (c.qkv_bias && !c.linear_bias) {
    candidates = {HfModelType::kQwen2};
  } else {
    candidates = {HfModelType::kLlama, HfModelType::kMistral};
  }
  absl::Status first;
  for (const HfModelType type : candidates) {
    const absl::Status status = CheckExpressible(type, c);
    if (status.ok()) return type;
    first.Update(status);
  }
  return first;
}

bool IsNewFalcon(const DecoderConfig& c) {
  return c.parallel_block && (c.parallel_norms || (c.kv_heads != 1 && c.kv_heads != c.heads));
}

}  // namespace shale
