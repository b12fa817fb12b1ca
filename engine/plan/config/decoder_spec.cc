// Reads, writes and checks the decoder in a job spec.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/model/adapter.h"
#include "engine/plan/config/members.h"
#include "engine/plan/config/model_spec.h"
#include "engine/strings/messages.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Sets what Gemma 2 and 3 have in common.
void SetGemma(DecoderConfig& config) {
  config.norm_epsilon = 1e-6;
  config.activation = Activation::kGeGlu;
  config.tied_head = config.post_norms = config.norm_adds_one = config.scaled_embedding = true;
}

// Sets what the family decides in a config with the values of a new one, which are those of LLAMA.
void SetFamily(proto::DecoderSpec::Family family, DecoderConfig& config) {
  switch (family) {
    case proto::DecoderSpec::GPT2:
      config.norm = NormKind::kLayerNorm;
      config.position = PositionKind::kLearned;
      config.activation = Activation::kGeluTanh;
      config.tied_head = config.qkv_bias = config.linear_bias = true;
      break;
    case proto::DecoderSpec::QWEN2:
      config.norm_epsilon = 1e-6;
      config.qkv_bias = true;
      break;
    case proto::DecoderSpec::QWEN3:
      config.norm_epsilon = 1e-6;
      config.qk_norm = true;
      break;
    case proto::DecoderSpec::FALCON:
      config.norm = NormKind::kLayerNorm;
      config.activation = Activation::kGeluErf;
      config.tied_head = config.parallel_block = true;
      config.kv_heads = 1;
      break;
    case proto::DecoderSpec::STARCODER2:
      config.norm = NormKind::kLayerNorm;
      config.activation = Activation::kGeluTanh;
      config.tied_head = config.qkv_bias = config.linear_bias = true;
      config.attention_window = 4096;
      break;
    case proto::DecoderSpec::GEMMA2:
      SetGemma(config);
      config.attention_window = 4096;
      config.layer_pattern = "WF";
      config.attention_cap = 50;
      config.logit_cap = 30;
      break;
    case proto::DecoderSpec::GEMMA3:
      SetGemma(config);
      config.attention_window = 1024;
      config.layer_pattern = "WWWWWF";
      config.rope_theta = 1e6;
      config.window_rope_theta = 10000;
      config.qk_norm = true;
      break;
    default: break;  // LLAMA, MISTRAL.
  }
}

// Returns the default of DecoderConfig::hidden: 4 x width, or with a gate 8/3 x width, rounded up to a multiple of 64.
// Gated layers have three matrices where the others have two, so this gives both about the same number of parameters.
int64_t DefaultHidden(int64_t width, Activation activation) {
  if (!IsGated(activation)) return 4 * width;
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

constexpr char kTargets[] = "model.adapter.targets";
// Each target is compared with each layer of each block.
constexpr size_t kMostTargets = 64;

bool MatchesALayer(absl::string_view target, const std::vector<AdaptableLinear>& linears, int64_t layers) {
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const AdaptableLinear& linear : linears) {
      if (MatchesTarget(target, linear.NameIn(layer))) return true;
    }
  }
  return false;
}

constexpr size_t kMostLayers = 65536;  // As DecoderSpec.layers.
// Returns whether layer_pattern consists of the letters that it may have, and has no more than there may be layers.
bool HasLettersOfLayers(const DecoderConfig& config) {
  return config.layer_pattern.find_first_not_of("WF") == std::string::npos &&
         config.layer_pattern.size() <= kMostLayers;
}

void CheckLayers(const proto::DecoderSpec& spec, const DecoderConfig& config, SpecErrors& errors) {
  if (!HasLettersOfLayers(config)) {
    errors.AddRule({"model.decoder.layer_pattern", "model.decoder.family"},
                   absl::StrCat("found ", Quoted(config.layer_pattern),
                                "; allowed: the letters W (window) and F (full attention), at most ", kMostLayers));
  } else if (config.attention_window == 0 &&
             absl::StrContains(spec.layer_pattern().substr(0, static_cast<size_t>(config.layers)), 'W')) {
    errors.AddRule({"model.decoder.layer_pattern", "model.decoder.attention_window"},
                   "W is a layer with a window, and attention_window is 0; give attention_window");
  }
}

}  // namespace

bool ReadSpec(const proto::ModelSpec& model, int64_t sequence_length, DecoderConfig& config) {
  if (!model.has_decoder()) return false;
  const proto::DecoderSpec& spec = model.decoder();
  SetFamily(spec.family(), config);
  const bool one_kv_head = config.kv_heads == 1;
  MemberReader reader(spec);
  VisitMembers(config, reader);
  if (!spec.has_kv_heads() && !one_kv_head) config.kv_heads = config.heads;
  if (!spec.has_head_width()) config.head_width = std::max<int64_t>(1, config.width / config.heads);
  if (!spec.has_hidden()) config.hidden = DefaultHidden(config.width, config.activation);
  if (!spec.has_max_positions()) config.max_positions = sequence_length;
  if (model.has_adapter()) config.adapter = ReadAdapter(model.adapter());
  if (HasLettersOfLayers(config)) config.Normalize();
  return true;
}

void WriteSpec(const DecoderConfig& config, proto::ModelSpec& model) {
  MemberWriter writer(model.mutable_decoder());
  VisitMembers(config, writer);
  if (config.adapter) WriteAdapter(*config.adapter, *model.mutable_adapter());
}

void CheckKindRules(const proto::ModelSpec& model, const DecoderConfig& config, int64_t sequence_length,
                    SpecErrors& errors) {
  const proto::DecoderSpec& spec = model.decoder();
  CheckHeads(spec, config, errors);
  CheckLayers(spec, config, errors);
  if (config.adapter) CheckAdapter(config, errors);
  if (config.rope_scaling && config.rope_scaling->kind == RopeScalingKind::kLlama3 &&
      config.rope_scaling->low_freq_factor >= config.rope_scaling->high_freq_factor) {
    errors.AddRule({"model.decoder.rope_scaling.low_freq_factor", "model.decoder.rope_scaling.high_freq_factor"},
                   "low_freq_factor must be below high_freq_factor; Llama 3 has 1 and 4");
  }
  if (config.parallel_norms && !config.parallel_block) {
    errors.AddRuleAboutFirst(
        {"model.decoder.parallel_norms", "model.decoder.parallel_block", "model.decoder.family"},
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

AdapterConfig ReadAdapter(const proto::AdapterSpec& spec) {
  AdapterConfig config;
  MemberReader reader(spec);
  VisitMembers(config, reader);
  if (!spec.has_alpha()) config.alpha = static_cast<double>(config.rank);
  if (config.targets.empty()) config.targets = {"*"};
  return config;
}

void WriteAdapter(const AdapterConfig& config, proto::AdapterSpec& spec) {
  MemberWriter writer(&spec);
  VisitMembers(config, writer);
}

void CheckAdapter(const DecoderConfig& config, SpecErrors& errors) {
  const AdapterConfig& adapter = *config.adapter;
  if (adapter.targets.size() > kMostTargets) {
    errors.Add(kTargets, absl::StrCat("found ", adapter.targets.size(), " patterns; allowed: up to ", kMostTargets));
    return;
  }
  const std::vector<AdaptableLinear> linears = AdaptableLinears(config);
  for (size_t i = 0; i < adapter.targets.size(); ++i) {
    if (MatchesALayer(adapter.targets[i], linears, config.layers)) continue;
    std::vector<std::string> names;
    for (const AdaptableLinear& linear : linears) names.push_back(linear.NameIn(0));
    errors.AddRule({absl::StrCat(kTargets, "[", i, "]"), "model.decoder.layers", "model.decoder.family"},
                   absl::StrCat(Quoted(adapter.targets[i]), " matches no linear layer of the model; found ",
                                absl::StrJoin(names, ", "),
                                ", and those of the other blocks; what follows a dot is "
                                "enough, and * matches any run of characters"));
  }
}

}  // namespace shale
