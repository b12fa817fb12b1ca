#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/config/rules.h"

namespace shale {
namespace {

// Returns "992 or 1008": the nearest numbers below and above `value`, from 1 to `limit`, for which `good` holds. Empty
// if there is none.
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
  // Without head_width, the width must divide into heads of an even width.
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

void CheckDecoder(const proto::DecoderSpec& spec, const DecoderConfig& config, int64_t sequence_length,
                  SpecErrors& errors) {
  CheckHeads(spec, config, errors);
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

}  // namespace

void CheckModelRules(const proto::ModelSpec& spec, const ModelConfig& model, int64_t sequence_length,
                     SpecErrors* errors) {
  if (spec.kind_case() == proto::ModelSpec::KIND_NOT_SET) {
    errors->AddRule({"model", "model.hf_folder"}, "missing; give decoder { ... }, mlp { ... } or hf_folder");
  } else if (spec.has_mlp() && !spec.hf_folder().empty()) {
    errors->AddRule({"model.hf_folder", "model.mlp"},
                    "a Hugging Face folder holds a decoder; leave mlp or hf_folder out");
  } else if (spec.has_decoder()) {
    CheckDecoder(spec.decoder(), std::get<DecoderConfig>(model), sequence_length, *errors);
  }
}

}  // namespace shale
