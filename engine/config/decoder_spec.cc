// Reads, writes and checks the decoder in a job spec.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/config/adapter_spec.h"
#include "engine/config/model_spec.h"
#include "engine/config/proto_enums.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr IntRange kDecoderIntRanges[] = {
    {"model.decoder.vocabulary", 1, kInt32Max},
    {"model.decoder.width", 1, kMaxWidth, kRequired},
    {"model.decoder.layers", 1, kMaxLayers, kRequired},
    {"model.decoder.heads", 1, 1 << 20, kRequired},
    {"model.decoder.kv_heads", 1, 1 << 20},
    {"model.decoder.head_width", 2, kMaxWidth},
    {"model.decoder.hidden", 1, kMaxHidden},
    {"model.decoder.max_positions", 1, kMaxTokens},
    {"model.decoder.rope_scaling.original_context", 1, kMaxTokens},
    {"model.decoder.attention_window", 0, kMaxTokens},
    {"model.adapter.rank", 1, 1 << 16, kRequired},
};

constexpr RealRange kDecoderRealRanges[] = {
    {"model.decoder.rope_theta", 1, 1e12},
    {"model.decoder.rope_scaling.factor", 1, 1e6},
    {"model.decoder.rope_scaling.low_freq_factor", 1e-6, 1e6},
    {"model.decoder.rope_scaling.high_freq_factor", 1e-6, 1e6},
    {"model.decoder.norm_epsilon", kTiny, 1},
    {"model.decoder.init_std", 0, 100},
    {"model.adapter.alpha", 1e-6, 1e6},
};

// The defaults that depend on the family. Each field is named like the one in DecoderConfig that it is for, except
// one_kv_head, which makes kv_heads 1.
struct FamilyDefaults {
  NormKind norm;
  PositionKind position;
  Activation activation;
  double norm_epsilon;
  bool tied_head;
  bool qkv_bias;
  bool linear_bias;
  bool qk_norm;
  bool parallel_block;
  bool one_kv_head;
};

constexpr FamilyDefaults kLlama = {
    .norm = NormKind::kRmsNorm,
    .position = PositionKind::kRotary,
    .activation = Activation::kSwiGlu,
    .norm_epsilon = 1e-5,
};

FamilyDefaults DefaultsOf(proto::DecoderSpec::Family family) {
  FamilyDefaults defaults = kLlama;
  switch (family) {
    case proto::DecoderSpec::GPT2:
      return {.norm = NormKind::kLayerNorm,
              .position = PositionKind::kLearned,
              .activation = Activation::kGeluTanh,
              .norm_epsilon = 1e-5,
              .tied_head = true,
              .qkv_bias = true,
              .linear_bias = true};
    case proto::DecoderSpec::QWEN2:
      defaults.norm_epsilon = 1e-6;
      defaults.qkv_bias = true;
      return defaults;
    case proto::DecoderSpec::QWEN3:
      defaults.norm_epsilon = 1e-6;
      defaults.qk_norm = true;
      return defaults;
    case proto::DecoderSpec::FALCON:
      return {.norm = NormKind::kLayerNorm,
              .position = PositionKind::kRotary,
              .activation = Activation::kGeluErf,
              .norm_epsilon = 1e-5,
              .tied_head = true,
              .parallel_block = true,
              .one_kv_head = true};
    default: return defaults;  // LLAMA, MISTRAL.
  }
}

// Returns the default of DecoderConfig::hidden: 4 x width, or for SwiGLU 8/3 x width, rounded up to a multiple of 64.
// SwiGLU has three matrices where the others have two, so this gives both about the same number of parameters.
int64_t DefaultHidden(int64_t width, Activation activation) {
  if (activation != Activation::kSwiGlu) return 4 * width;
  constexpr int64_t kMultiple = 64;
  const int64_t hidden = (8 * width + 2) / 3;
  return RoundUp(hidden, kMultiple);
}

// Returns the nearest numbers below and above `value`, from 1 to `limit`, for which `good` holds, as "992 or 1008".
// Returns "" if there are none.
template <typename Predicate>
std::string NearestGood(int64_t value, int64_t limit, Predicate good) {
  std::vector<int64_t> found;
  for (int64_t below = value - 1; below >= 1; --below) {
    if (!good(below)) continue;
    found.push_back(below);
    break;
  }
  for (int64_t above = value + 1; above <= limit; ++above) {
    if (!good(above)) continue;
    found.push_back(above);
    break;
  }
  return absl::StrJoin(found, " or ");
}

void CheckHeads(const proto::DecoderSpec& spec, const DecoderConfig& config, SpecErrors& errors) {
  if (config.heads % config.kv_heads != 0) {
    errors.AddRule({"model.decoder.kv_heads", "model.decoder.heads"},
                   absl::StrCat("heads ", config.heads, " is not a multiple of kv_heads ", config.kv_heads,
                                "; try kv_heads ", NearestGood(config.kv_heads, config.heads, [&](int64_t kv_heads) {
                                  return config.heads % kv_heads == 0;
                                })));
  }
  if (spec.has_head_width()) {
    if (config.head_width % 2 == 0) return;
    errors.AddRule({"model.decoder.head_width"}, absl::StrCat("found ", config.head_width, ", which is odd; try ",
                                                              config.head_width - 1, " or ", config.head_width + 1));
    return;
  }
  // Without head_width, width / heads must be a whole and even number.
  const int64_t heads = config.heads;
  if (config.width % heads == 0 && config.width / heads % 2 == 0) return;
  const std::string wrong = config.width % heads != 0
                                ? absl::StrCat("width ", config.width, " is not a multiple of heads ", heads)
                                : absl::StrCat("width ", config.width, " divided by heads ", heads,
                                               " is the odd head_width ", config.width / heads);
  const int64_t below = config.width / (2 * heads) * 2 * heads;
  const std::string advice = below > 0 ? absl::StrCat(below, " or ", below + 2 * heads) : absl::StrCat(2 * heads);
  errors.AddRule({"model.decoder.width", "model.decoder.heads"},
                 absl::StrCat(wrong, "; try width ", advice, ", or give head_width"));
}

}  // namespace

FieldRanges RangesOf(const DecoderConfig&) { return {kDecoderIntRanges, kDecoderRealRanges}; }

bool ReadSpec(const proto::ModelSpec& model, int64_t sequence_length, DecoderConfig& config) {
  if (!model.has_decoder()) return false;
  const proto::DecoderSpec& spec = model.decoder();
  const FamilyDefaults family = DefaultsOf(spec.family());
  config.vocabulary = spec.vocabulary();
  config.width = spec.width();
  config.layers = spec.layers();
  config.heads = spec.heads();
  config.kv_heads = spec.has_kv_heads() ? spec.kv_heads() : family.one_kv_head ? 1 : spec.heads();
  config.head_width = spec.has_head_width() ? spec.head_width() : std::max<int64_t>(1, spec.width() / spec.heads());
  config.norm = FromSpec(spec.norm(), family.norm);
  config.position = FromSpec(spec.position(), family.position);
  config.activation = FromSpec(spec.activation(), family.activation);
  config.hidden = spec.has_hidden() ? spec.hidden() : DefaultHidden(spec.width(), config.activation);
  config.max_positions = spec.has_max_positions() ? spec.max_positions() : sequence_length;
  if (spec.has_rope_theta()) config.rope_theta = spec.rope_theta();
  if (spec.has_rope_scaling()) {
    const proto::RopeScalingSpec& from = spec.rope_scaling();
    RopeScalingConfig& to = config.rope_scaling.emplace();
    if (from.has_factor()) to.factor = from.factor();
    if (from.has_low_freq_factor()) to.low_freq_factor = from.low_freq_factor();
    if (from.has_high_freq_factor()) to.high_freq_factor = from.high_freq_factor();
    if (from.has_original_context()) to.original_context = from.original_context();
  }
  config.norm_epsilon = spec.has_norm_epsilon() ? spec.norm_epsilon() : family.norm_epsilon;
  config.tied_head = spec.has_tied_head() ? spec.tied_head() : family.tied_head;
  config.qkv_bias = spec.has_qkv_bias() ? spec.qkv_bias() : family.qkv_bias;
  config.linear_bias = spec.has_linear_bias() ? spec.linear_bias() : family.linear_bias;
  config.qk_norm = spec.has_qk_norm() ? spec.qk_norm() : family.qk_norm;
  config.parallel_block = spec.has_parallel_block() ? spec.parallel_block() : family.parallel_block;
  config.parallel_norms = spec.parallel_norms();
  config.attention_window = spec.attention_window();
  if (spec.has_init_std()) config.init_std = spec.init_std();
  if (model.has_adapter()) config.adapter = ReadAdapter(model.adapter());
  return true;
}

void WriteSpec(const DecoderConfig& config, proto::ModelSpec& model) {
  proto::DecoderSpec& spec = *model.mutable_decoder();
  if (config.vocabulary > 0) spec.set_vocabulary(config.vocabulary);
  spec.set_width(config.width);
  spec.set_layers(config.layers);
  spec.set_heads(config.heads);
  spec.set_kv_heads(config.kv_heads);
  spec.set_head_width(config.head_width);
  spec.set_hidden(config.hidden);
  spec.set_max_positions(config.max_positions);
  spec.set_norm(ToSpec<proto::DecoderSpec::Norm>(config.norm));
  spec.set_position(ToSpec<proto::DecoderSpec::Position>(config.position));
  spec.set_activation(ToSpec<proto::DecoderSpec::Activation>(config.activation));
  if (config.position == PositionKind::kRotary) spec.set_rope_theta(config.rope_theta);
  if (config.rope_scaling) {
    proto::RopeScalingSpec& scaling = *spec.mutable_rope_scaling();
    scaling.set_factor(config.rope_scaling->factor);
    scaling.set_low_freq_factor(config.rope_scaling->low_freq_factor);
    scaling.set_high_freq_factor(config.rope_scaling->high_freq_factor);
    scaling.set_original_context(config.rope_scaling->original_context);
  }
  spec.set_norm_epsilon(config.norm_epsilon);
  spec.set_tied_head(config.tied_head);
  spec.set_qkv_bias(config.qkv_bias);
  spec.set_linear_bias(config.linear_bias);
  spec.set_qk_norm(config.qk_norm);
  spec.set_parallel_block(config.parallel_block);
  spec.set_parallel_norms(config.parallel_norms);
  spec.set_attention_window(config.attention_window);
  spec.set_init_std(config.init_std);
  if (config.adapter) WriteAdapter(*config.adapter, *model.mutable_adapter());
}

void CheckKindRules(const proto::ModelSpec& model, const DecoderConfig& config, int64_t sequence_length,
                    SpecErrors& errors) {
  const proto::DecoderSpec& spec = model.decoder();
  CheckHeads(spec, config, errors);
  if (config.adapter) CheckAdapter(config, errors);
  if (config.position != PositionKind::kRotary) {
    const absl::string_view message =
        "positions are learned, and only ROTARY reads it; leave it out, or give position ROTARY";
    if (spec.has_rope_theta()) {
      errors.AddRule({"model.decoder.rope_theta", "model.decoder.position", "model.decoder.family"}, message);
    }
    if (spec.has_rope_scaling()) {
      errors.AddRule({"model.decoder.rope_scaling", "model.decoder.position", "model.decoder.family"}, message);
    }
  }
  if (config.rope_scaling && config.rope_scaling->low_freq_factor >= config.rope_scaling->high_freq_factor) {
    errors.AddRule({"model.decoder.rope_scaling.low_freq_factor", "model.decoder.rope_scaling.high_freq_factor"},
                   "low_freq_factor must be below high_freq_factor; Llama 3 has 1 and 4");
  }
  if (config.parallel_norms && !config.parallel_block) {
    errors.AddRule({"model.decoder.parallel_norms", "model.decoder.parallel_block", "model.decoder.family"},
                   "needs parallel_block, because other blocks already have two norms; set parallel_block too, or "
                   "leave it out");
  }
  if (sequence_length > config.max_positions) {
    errors.AddRule({"model.decoder.max_positions", "batch.sequence_length"},
                   absl::StrCat("max_positions is ", config.max_positions, ", below sequence_length ", sequence_length,
                                "; raise it, or shorten the sequences"));
  }
}

std::vector<SizeProduct> ActivationSizes(const DecoderConfig& config, const StepSizes& step) {
  const auto& [micro, length, steps] = step;
  const SizeFactor width = {"model.decoder.width", config.width};
  const SizeFactor hidden = {"model.decoder.hidden", config.hidden};
  const SizeFactor layers = {"model.decoder.layers", config.layers};
  const SizeFactor heads = {"model.decoder.heads", config.heads};
  const SizeFactor head_width = {"model.decoder.head_width", config.head_width};
  return {{"the inputs of the blocks", {micro, length, steps, width, layers}},
          {"the activations of the feed-forward layers", {micro, length, hidden, layers}},
          {"the heads", {micro, length, heads, head_width, layers}}};
}

}  // namespace shale
