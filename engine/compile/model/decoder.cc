// The facts of decoders (engine/compile/model/config.h).

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "engine/compile/model/adapter.h"
#include "engine/compile/model/config.h"
#include "engine/compile/model/model.h"
#include "engine/strings/printing.h"
#include "kernels/ops/rope.h"

namespace shale {
namespace {

// Returns how many keys a query sees on average over a sequence, about S / 2 without a window.
double MeanKeys(int64_t sequence_length, int64_t window) {
  const double s = static_cast<double>(sequence_length);
  if (window <= 0 || window >= sequence_length) return s / 2;
  const double w = static_cast<double>(window);
  return w - w * w / (2 * s);
}

using Kind = Initializer::Kind;

struct LinearParameters {
  ParameterId weight;
  std::optional<ParameterId> bias;
  std::vector<LowRankAdapter> adapters;
};

// Adds parameters with a common name prefix to one group.
class ParameterScope {
 public:
  // `adapted` are the linear layers that have an adapter.
  ParameterScope(GraphBuilder& b, const DecoderConfig& config, GroupId group, std::string prefix,
                 std::vector<AdaptableLinear> adapted = {})
      : b_(b), config_(config), group_(group), prefix_(std::move(prefix)), adapted_(std::move(adapted)) {}

  NormParameters Norm(absl::string_view name) {
    NormParameters norm;
    norm.weight = Weight(absl::StrCat(name, ".weight"), config_.width);
    if (config_.norm == NormKind::kLayerNorm) {
      norm.bias = Add(absl::StrCat(name, ".bias"), {config_.width}, {Kind::kZeros});
    }
    norm.epsilon = config_.norm_epsilon;
    norm.adds_one = config_.norm_adds_one;
    return norm;
  }
  // The RMSNorm of a head.
  NormParameters HeadNorm(absl::string_view name) {
    return {.weight = Weight(absl::StrCat(name, ".weight"), config_.head_width),
            .epsilon = config_.norm_epsilon,
            .adds_one = config_.norm_adds_one};
  }
  LinearParameters Linear(absl::string_view name, int64_t out, int64_t in, bool bias, double std) {
    LinearParameters linear;
    linear.weight = Add(absl::StrCat(name, ".weight"), {out, in}, {Kind::kNormal, std});
    if (bias) linear.bias = Add(absl::StrCat(name, ".bias"), {out}, {Kind::kZeros});
    for (const AdaptableLinear& part : adapted_) {
      if (part.linear == name) linear.adapters.push_back(Adapter(part));
    }
    return linear;
  }
  ParameterId Add(absl::string_view name, std::vector<int64_t> shape, Initializer initializer) {
    return b_.AddParameter(group_, absl::StrCat(prefix_, name), std::move(shape), initializer);
  }

 private:
  ParameterId Weight(absl::string_view name, int64_t size) {
    return Add(name, {size}, {config_.norm_adds_one ? Kind::kZeros : Kind::kOnes});
  }
  LowRankAdapter Adapter(const AdaptableLinear& part) {
    const AdapterConfig& adapter = *config_.adapter;
    // The uniform values of He et al. (2015) with a leak of sqrt(5), as PEFT has them, lie within 1 / sqrt(in).
    const double deviation = 1 / std::sqrt(3.0 * static_cast<double>(part.in));
    LowRankAdapter added;
    added.a_RK = Add(absl::StrCat(part.name, ".lora_A.weight"), {adapter.rank, part.in}, {Kind::kUniform, deviation});
    added.b_NR = Add(absl::StrCat(part.name, ".lora_B.weight"), {part.out, adapter.rank}, {Kind::kZeros});
    added.column = part.row;
    added.scale = adapter.Scale();
    added.name = absl::StrCat(part.name, ".lora");
    return added;
  }

  GraphBuilder& b_;
  const DecoderConfig& config_;
  GroupId group_;
  std::string prefix_;
  std::vector<AdaptableLinear> adapted_;
};

struct BlockParameters {
  NormParameters attention_norm;
  LinearParameters qkv;
  std::optional<NormParameters> q_norm, k_norm;
  LinearParameters output;
  std::optional<NormParameters> attention_post_norm, ffn_norm, ffn_post_norm;
  LinearParameters up;  // For SwiGLU and GEGLU: gate and up, packed into one matrix.
  LinearParameters down;
};

BlockParameters AddBlockParameters(GraphBuilder& b, const DecoderConfig& c, const BlockConfig& block, int64_t layer) {
  const std::string name = absl::StrCat("blocks.", layer);
  ParameterScope scope(b, c, b.AddGroup(name), absl::StrCat(name, "."), AdaptedLinears(c, layer));
  // Projections into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
  const double residual_std = c.init_std / std::sqrt(2.0 * c.layers);
  const bool gated = IsGated(block.activation);
  BlockParameters p;
  p.attention_norm = scope.Norm("attention_norm");
  p.qkv = scope.Linear("attention.qkv", (c.heads + 2 * c.kv_heads) * c.head_width, c.width, block.qkv_bias, c.init_std);
  if (block.qk_norm) {
    p.q_norm = scope.HeadNorm("attention.q_norm");
    p.k_norm = scope.HeadNorm("attention.k_norm");
  }
  p.output = scope.Linear("attention.output", c.width, c.heads * c.head_width, block.linear_bias, residual_std);
  if (block.post_norms) p.attention_post_norm = scope.Norm("attention_post_norm");
  if (block.ffn_norm) p.ffn_norm = scope.Norm("ffn_norm");
  p.up = scope.Linear(gated ? "ffn.gate_up" : "ffn.up", gated ? 2 * c.hidden : c.hidden, c.width, block.linear_bias,
                      c.init_std);
  p.down = scope.Linear("ffn.down", c.width, c.hidden, block.linear_bias, residual_std);
  if (block.post_norms) p.ffn_post_norm = scope.Norm("ffn_post_norm");
  return p;
}

RopeScaling ScalingOf(const RopeConfig& rope) {
  if (!rope.scaling) return {};
  const RopeScalingConfig& scaling = *rope.scaling;
  // Linear scaling is that of Llama 3 in which every frequency counts as low.
  constexpr double kAll = std::numeric_limits<double>::max();
  if (scaling.kind == RopeScalingKind::kLinear) return {scaling.factor, kAll, kAll, scaling.original_context};
  return {scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_context};
}

Tensor AttentionSublayer(GraphBuilder& b, const DecoderConfig& c, const BlockConfig& block, const BlockParameters& p,
                         const Tensor& x) {
  const int64_t H = c.heads, G = c.kv_heads, D = c.head_width, B = b.options().micro_batch;
  const Tensor qkv = Linear(b, x, p.qkv.weight, p.qkv.bias, "attention.qkv", p.qkv.adapters);
  // Returns `count` heads of [T, heads * D] from `first` on, as [T, count, D]. After an error of an earlier layer the
  // tensors may have other sizes, so views are those that the builder checks.
  const auto heads = [&](const Tensor& x, int64_t first, int64_t count) {
    return SplitLast(b, Slice(b, x, 1, first * D, count * D), count);
  };
  const Tensor v = SplitFirst(b, heads(qkv, H + G, G), B);
  Tensor qk = Slice(b, qkv, 1, 0, (H + G) * D);
  if (block.qk_norm) {
    const Tensor normed = b.NewActivation("attention.qk_normed", x.dtype, {x.dim(0), (H + G) * D}, /*cheap=*/true);
    HeadNorm(b, heads(qk, 0, H), *p.q_norm, heads(normed, 0, H), "attention.q_norm");
    HeadNorm(b, heads(qk, H, G), *p.k_norm, heads(normed, H, G), "attention.k_norm");
    qk = normed;
  }
  if (block.rope) ApplyRope(b, SplitFirst(b, heads(qk, 0, H + G), B), block.rope->theta, ScalingOf(*block.rope));
  const Tensor q = SplitFirst(b, heads(qk, 0, H), B), k = SplitFirst(b, heads(qk, H, G), B);
  const AttentionScores scores = {.scale = block.attention_scale, .cap = block.attention_cap};
  const Tensor projected = Linear(b, Attention(b, q, k, v, block.attention_window, scores), p.output.weight,
                                  p.output.bias, "attention.projected", p.output.adapters);
  return block.post_norms ? Norm(b, projected, *p.attention_post_norm, "attention_post_norm") : projected;
}

Tensor Activate(GraphBuilder& b, const Tensor& up, Activation activation) {
  switch (activation) {
    case Activation::kSwiGlu: return SwiGlu(b, up);
    case Activation::kGeGlu: return GeGlu(b, up);
    case Activation::kGeluTanh: return GeluTanh(b, up);
    case Activation::kGeluErf: break;
  }
  return GeluErf(b, up);
}

Tensor FeedForwardSublayer(GraphBuilder& b, const BlockConfig& block, const BlockParameters& p, const Tensor& x) {
  const Tensor up =
      Linear(b, x, p.up.weight, p.up.bias, IsGated(block.activation) ? "ffn.gate_up" : "ffn.up", p.up.adapters);
  const Tensor projected =
      Linear(b, Activate(b, up, block.activation), p.down.weight, p.down.bias, "ffn.projected", p.down.adapters);
  return block.post_norms ? Norm(b, projected, *p.ffn_post_norm, "ffn_post_norm") : projected;
}

void BuildBlock(GraphBuilder& b, const DecoderConfig& c, int64_t layer) {
  const BlockConfig block = c.Block(layer);
  const BlockParameters p = AddBlockParameters(b, c, block, layer);
  b.BeginUnit(absl::StrCat("blocks.", layer), static_cast<int>(layer));
  const Tensor x = b.UnitInput();
  b.SetSublayer(Sublayer::kAttention);
  const Tensor normed = Norm(b, x, p.attention_norm, "attention_norm");
  const Tensor attention = AttentionSublayer(b, c, block, p, normed);
  b.SetSublayer(Sublayer::kFeedForward);
  Tensor middle, ffn_input;
  if (block.parallel) {
    ffn_input = p.ffn_norm ? Norm(b, x, *p.ffn_norm, "ffn_norm") : normed;
    const Tensor ffn = FeedForwardSublayer(b, block, p, ffn_input);
    middle = AddResidual(b, x, attention, "residual");
    b.EndUnit(AddResidual(b, middle, ffn, "out"));
    return;
  }
  std::tie(middle, ffn_input) = AddNorm(b, attention, x, *p.ffn_norm, "residual", "ffn_norm");
  b.EndUnit(AddResidual(b, middle, FeedForwardSublayer(b, block, p, ffn_input), "out"));
}

// Returns whether layer `layer` has the window.
bool HasWindow(const DecoderConfig& c, int64_t layer) {
  if (c.attention_window == 0) return false;
  return c.layer_pattern.empty() || c.layer_pattern[static_cast<size_t>(layer) % c.layer_pattern.size()] == 'W';
}

int64_t LayersWithWindow(const DecoderConfig& c) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) count += HasWindow(c, layer) ? 1 : 0;
  return count;
}

}  // namespace

BlockConfig DecoderConfig::Block(int64_t layer) const {
  const bool window = HasWindow(*this, layer);
  BlockConfig block;
  block.attention_window = window ? attention_window : 0;
  if (position == PositionKind::kRotary) {
    const bool own_base = window && window_rope_theta > 0;
    block.rope = own_base ? RopeConfig{window_rope_theta, std::nullopt} : RopeConfig{rope_theta, rope_scaling};
  }
  block.attention_scale = 1.0 / std::sqrt(static_cast<double>(score_width > 0 ? score_width : head_width));
  block.attention_cap = attention_cap;
  block.qk_norm = qk_norm;
  block.qkv_bias = qkv_bias;
  block.linear_bias = linear_bias;
  block.parallel = parallel_block;
  block.ffn_norm = !parallel_block || parallel_norms;
  block.post_norms = post_norms;
  block.activation = activation;
  return block;
}

void DecoderConfig::Normalize() {
  const int64_t windows = LayersWithWindow(*this);
  if (windows == 0) attention_window = 0, window_rope_theta = 0;
  if (windows == 0 || windows == layers) layer_pattern.clear();
  if (score_width == head_width) score_width = 0;
  if (layer_pattern.empty()) return;
  std::string letters;
  for (int64_t layer = 0; layer < layers; ++layer) letters += HasWindow(*this, layer) ? 'W' : 'F';
  // The shortest period is the least shift that maps the letters onto themselves.
  size_t period = 1;
  while (letters.compare(period, std::string::npos, letters, 0, letters.size() - period) != 0) ++period;
  layer_pattern = letters.substr(0, period);
}

double AdapterConfig::Scale() const {
  const double divisor = static_cast<double>(rank);
  return alpha / (rank_stabilized ? std::sqrt(divisor) : divisor);
}

unsigned __int128 DecoderConfig::ParameterCount(int64_t) const {
  using Wide = unsigned __int128;
  const Wide wide = width;
  const Wide one_norm = norm == NormKind::kLayerNorm ? 2 * wide : wide;
  const Wide query = static_cast<Wide>(heads) * head_width;
  const Wide qkv = query + 2 * static_cast<Wide>(kv_heads) * head_width;
  const BlockConfig first = Block(0);  // Blocks differ in what has no parameters.
  const Wide up = static_cast<Wide>(hidden) * (IsGated(first.activation) ? 2 : 1);
  const Wide norms = (first.ffn_norm ? 2 : 1) + (first.post_norms ? 2 : 0);
  Wide block = wide * qkv + query * wide + wide * up + hidden * wide + norms * one_norm;
  if (first.qkv_bias) block += qkv;
  if (first.linear_bias) block += wide + up + wide;
  if (first.qk_norm) block += 2 * static_cast<Wide>(head_width);
  const Wide table = position == PositionKind::kLearned ? max_positions * wide : 0;
  return vocabulary * wide * (tied_head ? 1 : 2) + table + layers * block + one_norm + AdapterParameterCount(*this);
}

double DecoderConfig::WidestRow() const {
  const double qkv = static_cast<double>(heads + 2 * kv_heads) * head_width;
  return std::max({static_cast<double>(width), 2.0 * hidden, qkv});
}

double DecoderConfig::AttentionFlopsPerToken(int64_t sequence_length) const {
  const double attention_width = static_cast<double>(heads) * static_cast<double>(head_width);
  double keys = 0;
  for (int64_t layer = 0; layer < layers; ++layer) keys += MeanKeys(sequence_length, Block(layer).attention_window);
  return 12 * attention_width * keys;
}

std::string DecoderConfig::Description() const {
  return absl::StrCat("decoder, ", Plural(layers, "block"), " of width ", WithCommas(width), ", ",
                      Plural(heads, "head"), " of ", WithCommas(head_width),
                      kv_heads != heads ? absl::StrCat(" (", WithCommas(kv_heads), " for keys and values)") : "",
                      ", inner width ", WithCommas(hidden), ", vocabulary ", WithCommas(vocabulary),
                      layer_pattern.empty() ? "" : absl::StrCat(", layers ", layer_pattern),
                      tied_head ? ", tied head" : "",
                      adapter ? absl::StrCat(", adapters of rank ", WithCommas(adapter->rank)) : "");
}

absl::StatusOr<ModelGraph> BuildDecoder(const DecoderConfig& c, GraphOptions options, Float8Sources sources) {
  options.vocabulary = c.vocabulary;
  if (c.adapter && options.train_only.empty()) options.train_only = AdapterParameterPatterns();
  GraphBuilder b(options, sources);
  // With a tied head, embedding, positions and final norm are one group, so that the head needs one gather, not two.
  const GroupId embedding = b.AddGroup("embedding");
  ParameterScope first(b, c, embedding, "");
  const ParameterId weight = first.Add("embedding.weight", {c.vocabulary, c.width}, {Kind::kNormal, c.init_std});
  std::optional<ParameterId> positions;
  if (c.position == PositionKind::kLearned) {
    positions = first.Add("embedding.positions", {c.max_positions, c.width}, {Kind::kNormal, c.init_std});
  }
  b.BeginUnit("embedding");
  b.EndUnit(Embedding(b, weight, positions, c.scaled_embedding ? std::sqrt(static_cast<double>(c.width)) : 1));

  for (int64_t layer = 0; layer < c.layers; ++layer) BuildBlock(b, c, layer);

  ParameterScope last(b, c, c.tied_head ? embedding : b.AddGroup("head"), "");
  const NormParameters norm = last.Norm("final_norm");
  const ParameterId head =
      c.tied_head ? weight : last.Add("head.weight", {c.vocabulary, c.width}, {Kind::kNormal, c.init_std});
  b.BeginUnit("head");
  LinearCrossEntropy(b, Norm(b, b.UnitInput(), norm, "final_norm"), head, std::nullopt, c.logit_cap);
  b.EndLastUnit();
  return b.Finish();
}

}  // namespace shale
