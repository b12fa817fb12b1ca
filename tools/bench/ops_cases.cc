#include "tools/bench/ops_cases.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/counter_random.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"
#include "kernels/ops.h"
#include "kernels/step_scalars.h"
#include "tools/bench/ops_case_maker.h"
#include "tools/bench/support.h"

namespace shale {
namespace {

// Returns the distance from the start of a buffer to the start of the next one.
int64_t Room(int64_t size_bytes) {
  constexpr int64_t kAlignment = 256;
  return RoundUp(size_bytes, kAlignment) + (size_bytes > kStaggerBytes ? kStaggerBytes : 0);
}

std::string Text(absl::string_view text) { return std::string(text.data(), text.size()); }

void AddEmbedding(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const int64_t b = s.tokens / s.sequence;
  for (const bool positions : {false, true}) {
    EmbeddingForward op{.tokens_BS = m.New(DType::kInt32, {b, s.sequence}),
                        .weight_VC = m.Act({s.vocabulary, s.width}),
                        .out_TC = m.Act({s.tokens, s.width})};
    if (positions) op.positions_PC = m.Act({s.sequence, s.width});
    cases.push_back(m.Finish(op, positions ? "positions" : "", ShapeText(op.out_TC)));
  }
  for (const bool accumulate : {false, true}) {
    const EmbeddingBackward op{.tokens_BS = m.New(DType::kInt32, {b, s.sequence}),
                               .d_out_TC = m.Act({s.tokens, s.width}),
                               .d_weight_VC = m.F32({s.vocabulary, s.width}),
                               .accumulate = accumulate};
    cases.push_back(m.Finish(op, accumulate ? "accumulate" : "", ShapeText(op.d_weight_VC)));
  }
}

void AddRmsNorm(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  for (const bool residual : {false, true}) {
    RmsNormForward op{.x = m.Act({s.tokens, s.width}),
                      .weight_C = m.Act({s.width}),
                      .y = m.Act({s.tokens, s.width}),
                      .rstd_R = m.F32({s.tokens}),
                      .epsilon = 1e-5f};
    if (residual) op.residual = m.Act({s.tokens, s.width}), op.sum = m.Act({s.tokens, s.width});
    cases.push_back(m.Finish(op, residual ? "residual" : "", ShapeText(op.x)));
  }
  for (const bool residual : {false, true}) {
    RmsNormBackward op{.d_y = m.Act({s.tokens, s.width}),
                       .x = m.Act({s.tokens, s.width}),
                       .weight_C = m.Act({s.width}),
                       .rstd_R = m.F32({s.tokens}),
                       .d_x = m.Act({s.tokens, s.width}),
                       .d_weight_C = m.F32({s.width})};
    if (residual) op.d_residual = m.Act({s.tokens, s.width});
    cases.push_back(m.Finish(op, residual ? "residual" : "", ShapeText(op.x)));
  }
  // Normalizes every head's queries in place, in a tensor where they are packed with keys and values.
  const Tensor packed = m.Act({s.tokens, (s.heads + 2 * s.kv_heads) * s.head_width});
  const Tensor heads = packed.Slice(1, 0, s.heads * s.head_width).SplitLast(s.heads, s.head_width);
  const RmsNormForward op{.x = heads,
                          .weight_C = m.Act({s.head_width}),
                          .y = heads,
                          .rstd_R = m.F32({s.tokens * s.heads}),
                          .epsilon = 1e-5f};
  cases.push_back(m.Finish(op, "heads", ShapeText(op.x)));
}

void AddLayerNorm(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  for (const bool residual : {false, true}) {
    LayerNormForward op{.x = m.Act({s.tokens, s.width}),
                        .weight_C = m.Act({s.width}),
                        .bias_C = m.Act({s.width}),
                        .y = m.Act({s.tokens, s.width}),
                        .mean_R = m.F32({s.tokens}),
                        .rstd_R = m.F32({s.tokens}),
                        .epsilon = 1e-5f};
    if (residual) op.residual = m.Act({s.tokens, s.width}), op.sum = m.Act({s.tokens, s.width});
    cases.push_back(m.Finish(op, residual ? "residual" : "", ShapeText(op.x)));
  }
  for (const bool residual : {false, true}) {
    LayerNormBackward op{.d_y = m.Act({s.tokens, s.width}),
                         .x = m.Act({s.tokens, s.width}),
                         .weight_C = m.Act({s.width}),
                         .mean_R = m.F32({s.tokens}),
                         .rstd_R = m.F32({s.tokens}),
                         .d_x = m.Act({s.tokens, s.width}),
                         .d_weight_C = m.F32({s.width}),
                         .d_bias_C = m.F32({s.width})};
    if (residual) op.d_residual = m.Act({s.tokens, s.width});
    cases.push_back(m.Finish(op, residual ? "residual" : "", ShapeText(op.x)));
  }
}

void AddActivations(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const SwiGluForward swiglu{.gate_up_T2F = m.Act({s.tokens, 2 * s.hidden}), .y_TF = m.Act({s.tokens, s.hidden})};
  cases.push_back(m.Finish(swiglu, "", ShapeText(swiglu.y_TF)));
  const SwiGluBackward d_swiglu{.gate_up_T2F = m.Act({s.tokens, 2 * s.hidden}),
                                .d_y_TF = m.Act({s.tokens, s.hidden}),
                                .d_gate_up_T2F = m.Act({s.tokens, 2 * s.hidden})};
  cases.push_back(m.Finish(d_swiglu, "", ShapeText(d_swiglu.d_y_TF)));
  for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
    const char* variant = kind == GeluKind::kTanh ? "tanh" : "erf";
    const GeluForward gelu{.x_TF = m.Act({s.tokens, s.hidden}), .y_TF = m.Act({s.tokens, s.hidden}), .kind = kind};
    cases.push_back(m.Finish(gelu, variant, ShapeText(gelu.x_TF)));
    const GeluBackward d_gelu{.x_TF = m.Act({s.tokens, s.hidden}),
                              .d_y_TF = m.Act({s.tokens, s.hidden}),
                              .d_x_TF = m.Act({s.tokens, s.hidden}),
                              .kind = kind};
    cases.push_back(m.Finish(d_gelu, variant, ShapeText(d_gelu.x_TF)));
  }
}

void AddAttention(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const int64_t b = s.tokens / s.sequence, all = s.heads + 2 * s.kv_heads, g = s.kv_heads;
  const Tensor qkv = m.Act({s.tokens, all * s.head_width});
  const Rope rope{.x_BSHD = m.Heads(qkv, 0, s.heads + g)};
  cases.push_back(m.Finish(rope, "", ShapeText(rope.x_BSHD)));

  const auto views = [&](auto& op, const Tensor& packed) {
    op.q_BSHD = m.Heads(packed, 0, s.heads);
    op.k_BSGD = m.Heads(packed, s.heads, g);
    op.v_BSGD = m.Heads(packed, s.heads + g, g);
    op.lse_BHS = m.F32({b, s.heads, s.sequence});
    op.scale = 1 / std::sqrt(static_cast<float>(s.head_width));
  };
  // With a soft cap the engine's own kernels compute it on every device.
  for (const char* variant : {"", "not causal", "window", "soft cap"}) {
    const bool causal = variant[0] != 'n';
    const int64_t window = variant[0] == 'w' ? CeilDivide(s.sequence, 4) : 0;
    const float cap = variant[0] == 's' ? 50 : 0;
    AttentionForward forward;
    views(forward, m.Act({s.tokens, all * s.head_width}));
    forward.out_BSHD = m.Act({b, s.sequence, s.heads, s.head_width});
    forward.causal = causal;
    forward.window = window;
    forward.cap = cap;
    cases.push_back(m.Finish(forward, variant, ShapeText(forward.q_BSHD)));

    AttentionBackward backward;
    views(backward, m.Act({s.tokens, all * s.head_width}));
    backward.out_BSHD = m.Act({b, s.sequence, s.heads, s.head_width});
    backward.d_out_BSHD = m.Act({b, s.sequence, s.heads, s.head_width});
    const Tensor d_qkv = m.Act({s.tokens, all * s.head_width});
    backward.d_q_BSHD = m.Heads(d_qkv, 0, s.heads);
    backward.d_k_BSGD = m.Heads(d_qkv, s.heads, g);
    backward.d_v_BSGD = m.Heads(d_qkv, s.heads + g, g);
    backward.causal = causal;
    backward.window = window;
    backward.cap = cap;
    cases.push_back(m.Finish(backward, variant, ShapeText(backward.q_BSHD)));
  }
}

// Adds the attention of one new token per sequence, and of several, at the end of a full cache.
void AddCachedAttention(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const int64_t b = s.tokens / s.sequence, g = s.kv_heads, d = s.head_width;
  for (const int64_t length : {int64_t{1}, std::min<int64_t>(16, s.sequence)}) {
    const CachedAttention op{.q_BSHD = m.Act({b, length, s.heads, d}),
                             .k_BSGD = m.Act({b, length, g, d}),
                             .v_BSGD = m.Act({b, length, g, d}),
                             .begins_B = m.New(DType::kInt32, {b}),
                             .out_BSHD = m.Act({b, length, s.heads, d}),
                             .keys_CGPD = m.Act({b, g, s.sequence, d}),
                             .values_CGPD = m.Act({b, g, s.sequence, d}),
                             .scale = 1 / std::sqrt(static_cast<float>(d))};
    cases.push_back(m.Finish(op, length == 1 ? "" : "several tokens", ShapeText(op.keys_CGPD)));
  }
}

void AddCrossEntropy(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  for (const bool gradient : {true, false}) {
    const CrossEntropy op{.logits_TV = m.Act({s.head_tokens, s.vocabulary}),
                          .targets_T = m.New(DType::kInt32, {s.head_tokens}),
                          .scale_1 = m.F32({1}),
                          .loss_T = m.F32({s.head_tokens}),
                          .gradient = gradient};
    cases.push_back(m.Finish(op, gradient ? "" : "loss only", ShapeText(op.logits_TV)));
  }
}

void AddSquaredError(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  for (const bool gradient : {true, false}) {
    SquaredError op{.prediction_TD = m.Act({s.tokens, s.width}),
                    .targets_TD = m.F32({s.tokens, s.width}),
                    .scale_1 = m.F32({1}),
                    .loss_T = m.F32({s.tokens}),
                    .weights_T = m.F32({s.tokens})};
    if (gradient) op.d_prediction_TD = m.Act({s.tokens, s.width});
    cases.push_back(m.Finish(op, gradient ? "" : "loss only", ShapeText(op.prediction_TD)));
  }
}

void AddRows(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const Add add{.a = m.Act({s.tokens, s.width}), .b = m.Act({s.tokens, s.width}), .out = m.Act({s.tokens, s.width})};
  cases.push_back(m.Finish(add, "", ShapeText(add.out)));
  const BiasBackward bias{.d_out_TN = m.Act({s.tokens, 3 * s.width}), .d_bias_N = m.F32({3 * s.width})};
  cases.push_back(m.Finish(bias, "", ShapeText(bias.d_out_TN)));
  const Copy copy{.from = m.Act({s.parameters}), .to = m.Act({s.parameters})};
  cases.push_back(m.Finish(copy, "", ShapeText(copy.to)));
  // Zeros every second block of 4096 elements.
  auto ranges = std::make_shared<std::vector<ElementRange>>();
  for (int64_t begin = 0; begin < s.parameters; begin += 8192) {
    ranges->push_back({begin, std::min(begin + 4096, s.parameters)});
  }
  const ZeroRanges zero{.x_N = m.Act({s.parameters}), .ranges = ranges};
  cases.push_back(m.Finish(zero, "", ShapeText(zero.x_N)));
  const int64_t weights = RoundUp(s.parameters, kNf4GroupWeights);
  const Nf4Dequantize widen{.stored_RP = m.New(DType::kUInt8, {1, Nf4Row{weights}.bytes()}),
                            .out_RN = m.Act({1, weights})};
  cases.push_back(m.Finish(widen, "", ShapeText(widen.out_RN)));
}

// Adds what makes operands of fp8 matmuls: of tokens, forward and with the copy that backward needs, and of weights.
void AddFloat8(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const AbsMax maximum{.x_RC = m.Act({s.tokens, s.hidden}), .maximum_1 = m.F32({1})};
  cases.push_back(m.Finish(maximum, "", ShapeText(maximum.x_RC)));
  for (const bool transposes : {false, true}) {
    QuantizeFloat8 op{.x_RC = m.Act({s.tokens, s.hidden}),
                      .maximum_1 = m.F32({1}),
                      .out_RC = m.New(DType::kFloat8E4M3, {s.tokens, s.hidden}),
                      .scale_1 = m.F32({1})};
    if (transposes) op.transposed_CR = m.New(DType::kFloat8E4M3, {s.hidden, s.tokens});
    cases.push_back(m.Finish(op, transposes ? "and transpose" : "", ShapeText(op.x_RC)));
  }
  const TransposeFloat8 transpose{m.New(DType::kFloat8E4M3, {s.tokens, s.hidden}),
                                  m.New(DType::kFloat8E4M3, {s.hidden, s.tokens})};
  cases.push_back(m.Finish(transpose, "", ShapeText(transpose.x_RC)));
  const auto parameters = std::make_shared<std::vector<ElementRange>>(1, ElementRange{0, s.parameters});
  const QuantizeShard maxima{.weight_P = m.Act({s.parameters}), .maxima_WQ = m.F32({1, 1}), .parameters = parameters};
  cases.push_back(m.Finish(maxima, "maxima", ShapeText(maxima.weight_P)));
  const QuantizeShard quantize{.stage = QuantizeShard::Stage::kQuantize,
                               .weight_P = m.Act({s.parameters}),
                               .maxima_WQ = m.F32({1, 1}),
                               .out_P = m.New(DType::kFloat8E4M3, {s.parameters}),
                               .scales_Q = m.F32({1}),
                               .parameters = parameters};
  cases.push_back(m.Finish(quantize, "quantize", ShapeText(quantize.weight_P)));
}

// Adds the same with blockwise scales: tiles of tokens, and blocks of weights.
void AddBlockwiseFloat8(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const auto scales = [&](Float8Scales kind, int64_t rows, int64_t columns) {
    const Float8ScaleMatrix matrix = Float8ScaleMatrix::Of(kind, rows, columns);
    return m.F32({matrix.rows, matrix.columns});
  };
  for (const Float8Scales kind : {Float8Scales::kTiles, Float8Scales::kBlocks}) {
    for (const bool transposes : {false, true}) {
      QuantizeFloat8 op{.x_RC = m.Act({s.tokens, s.hidden}),
                        .out_RC = m.New(DType::kFloat8E4M3, {s.tokens, s.hidden}),
                        .out_scales = scales(kind, s.tokens, s.hidden),
                        .scales = kind};
      if (transposes) {
        op.transposed_CR = m.New(DType::kFloat8E4M3, {s.hidden, s.tokens});
        op.transposed_scales = scales(kind, s.hidden, s.tokens);
      }
      cases.push_back(
          m.Finish(op, absl::StrCat(ToString(kind), transposes ? " and transpose" : ""), ShapeText(op.x_RC)));
    }
  }
}

// Returns the source of this kind for a block of a decoder.
Float8Source SourceFor(OpCaseMaker& m, Float8Source::Kind kind) {
  using Kind = Float8Source::Kind;
  const OpSizes& s = m.s;
  Float8Source of{.kind = kind};
  if (kind == Kind::kNorm || kind == Kind::kLayerNorm) of.weight_C = m.Act({s.width}), of.rstd_R = m.F32({s.tokens});
  if (kind == Kind::kLayerNorm) of.bias_C = m.Act({s.width}), of.mean_R = m.F32({s.tokens});
  if (kind == Kind::kGateGradient || kind == Kind::kGeluGradient) of.d_y_RF = m.Act({s.tokens, s.hidden});
  if (kind == Kind::kRope) {
    of.rotation = {.sequence_length = s.sequence, .heads = s.heads + s.kv_heads, .head_width = s.head_width};
  }
  return of;
}

// Adds what makes them of the results of norms, activation functions and RoPE, and computes these on the way.
void AddFloat8Sources(OpCaseMaker& m, std::vector<OpCase>& cases) {
  using Kind = Float8Source::Kind;
  const OpSizes& s = m.s;
  const RmsNormForward statistics{.x = m.Act({s.tokens, s.width}), .rstd_R = m.F32({s.tokens}), .epsilon = 1e-5f};
  cases.push_back(m.Finish(statistics, "statistics", ShapeText(statistics.x)));
  for (const Kind kind : {Kind::kNorm, Kind::kLayerNorm, Kind::kRope, Kind::kGelu, Kind::kGeluGradient, Kind::kGate,
                          Kind::kGateGradient}) {
    const bool norm = kind == Kind::kNorm || kind == Kind::kLayerNorm, gates = kind >= Kind::kGate;
    const int64_t qkv = (s.heads + 2 * s.kv_heads) * s.head_width;
    const int64_t columns = norm ? s.width : kind == Kind::kRope ? qkv : (gates ? 2 : 1) * s.hidden;
    const AbsMax maximum{m.Act({s.tokens, columns}), m.F32({1}), SourceFor(m, kind)};
    cases.push_back(m.Finish(maximum, absl::StrCat(ToString(kind)), ShapeText(maximum.x_RC)));
    for (const Float8Scales scales : {Float8Scales::kOne, Float8Scales::kTiles}) {
      QuantizeFloat8 op{.x_RC = m.Act({s.tokens, columns}), .scales = scales, .source = SourceFor(m, kind)};
      const int64_t C = op.columns();
      op.out_RC = m.New(DType::kFloat8E4M3, {s.tokens, C});
      op.transposed_CR = m.New(DType::kFloat8E4M3, {C, s.tokens});
      if (scales == Float8Scales::kOne) {
        op.maximum_1 = m.F32({1}), op.scale_1 = m.F32({1});
      } else {
        op.out_scales = m.F32({CeilDivide(C, kFloat8Block), s.tokens});
        op.transposed_scales = m.F32({CeilDivide(s.tokens, kFloat8Block), C});
      }
      cases.push_back(m.Finish(op, absl::StrCat(ToString(kind), " ", ToString(scales)), ShapeText(op.x_RC)));
    }
  }
}

std::string SizesText(const MatMul& op) { return absl::StrCat(op.m(), " x ", op.n(), " x ", op.k()); }

// Adds a linear layer y [T, N] = x [T, K] w^T and its two gradients. The gradient of w comes in two cases: overwriting
// and accumulating.
void AddLinear(OpCaseMaker& m, const std::string& layer, int64_t t, int64_t n, int64_t k, std::vector<OpCase>& cases) {
  const MatMul forward{.a = m.Act({t, k}), .b = m.Act({n, k}), .c_MN = m.Act({t, n}), .transpose_b = true};
  cases.push_back(m.Finish(forward, layer + " forward", SizesText(forward)));
  const MatMul input{.a = m.Act({t, n}), .b = m.Act({n, k}), .c_MN = m.Act({t, k})};
  cases.push_back(m.Finish(input, layer + " dgrad", SizesText(input)));
  for (const bool accumulate : {false, true}) {
    const MatMul weight{
        .a = m.Act({t, n}), .b = m.Act({t, k}), .c_MN = m.F32({n, k}), .transpose_a = true, .accumulate = accumulate};
    cases.push_back(m.Finish(weight, layer + (accumulate ? " wgrad accumulate" : " wgrad"), SizesText(weight)));
  }
}

// Adds the same in fp8, where all sizes allow it: gradients in e5m2, all else in e4m3, with one scale for each matrix;
// and with blockwise scales all in e4m3.
void AddFloat8Linear(OpCaseMaker& m, const std::string& layer, int64_t t, int64_t n, int64_t k,
                     std::vector<OpCase>& cases) {
  if (t % kFloat8Multiple != 0 || n % kFloat8Multiple != 0 || k % kFloat8Multiple != 0) return;
  for (const bool blockwise : {false, true}) {
    const DType gradients = blockwise ? DType::kFloat8E4M3 : DType::kFloat8E5M2;
    const std::string name = layer + (blockwise ? " blockwise fp8" : " fp8");
    const auto matmul = [&](DType a, int64_t rows, int64_t columns, int64_t depth, bool is_weight) {
      MatMul op{.a = m.New(a, {rows, depth}),
                .b = m.New(DType::kFloat8E4M3, {columns, depth}),
                .c_MN = is_weight ? m.F32({rows, columns}) : m.Act({rows, columns}),
                .scale_a = m.F32({1}),
                .scale_b = m.F32({1}),
                .transpose_b = true};
      if (!blockwise) return op;
      op.scales = is_weight ? Float8Scales::kTiles : Float8Scales::kBlocks;
      const Float8ScaleMatrix of_a = op.scales_of_a(), of_b = op.scales_of_b();
      op.scale_a = m.F32({of_a.rows, of_a.columns});
      op.scale_b = m.F32({of_b.rows, of_b.columns});
      return op;
    };
    MatMul forward = matmul(DType::kFloat8E4M3, t, n, k, false);
    forward.fast_accumulation = !blockwise;
    cases.push_back(m.Finish(forward, name + " forward", SizesText(forward)));
    const MatMul input = matmul(gradients, t, k, n, false);
    cases.push_back(m.Finish(input, name + " dgrad", SizesText(input)));
    for (const bool accumulate : {false, true}) {
      MatMul weight = matmul(gradients, n, k, t, true);
      weight.accumulate = accumulate;
      cases.push_back(m.Finish(weight, name + (accumulate ? " wgrad accumulate" : " wgrad"), SizesText(weight)));
    }
  }
}

void AddMatMuls(OpCaseMaker& m, std::vector<OpCase>& cases) {
  const OpSizes& s = m.s;
  const int64_t d = s.head_width;
  for (const auto add : {AddLinear, AddFloat8Linear}) {
    add(m, "qkv", s.tokens, (s.heads + 2 * s.kv_heads) * d, s.width, cases);
    add(m, "projection", s.tokens, s.width, s.heads * d, cases);
    add(m, "gate_up", s.tokens, 2 * s.hidden, s.width, cases);
    add(m, "down", s.tokens, s.width, s.hidden, cases);
  }
  AddLinear(m, "head", s.head_tokens, s.vocabulary, s.width, cases);
}

// Returns the name of every alternative of `Variant`, taken from a default value.
template <class Variant, size_t... kIndices>
std::vector<std::string> NamesOf(std::index_sequence<kIndices...>) {
  return {Text(NameOf(std::variant_alternative_t<kIndices, Variant>()))...};
}
template <class Variant>
std::vector<std::string> NamesOf() {
  return NamesOf<Variant>(std::make_index_sequence<std::variant_size_v<Variant>>());
}

}  // namespace

std::string ShapeText(const Tensor& t) {
  const std::string text = t.ToString();
  return text.substr(text.find('['));
}

OpCase OpCaseMaker::Finish(const Op& op, absl::string_view variant, std::string sizes) {
  const OpTraffic traffic = TrafficOf(op);
  OpCase made{.name = Text(NameOf(op)),
              .sizes = std::move(sizes),
              .dtype = act,
              .op = op,
              .buffer_bytes = std::move(buffer_bytes_),
              .vocabulary = s.vocabulary,
              .bytes = traffic.bytes_read + traffic.bytes_written,
              .flops = FlopsOf(op)};
  buffer_bytes_.clear();
  if (!variant.empty()) absl::StrAppend(&made.name, " ", variant);
  return made;
}

absl::Status CheckSizes(const OpSizes& s) {
  if (s.tokens % s.sequence != 0) {
    return absl::InvalidArgumentError(absl::StrCat("tokens are whole sequences: --tokens=", s.tokens,
                                                   " is not a multiple of --sequence=", s.sequence));
  }
  if (s.heads % s.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("query heads share key/value heads evenly: --heads=", s.heads,
                                                   " is not a multiple of --kv_heads=", s.kv_heads));
  }
  if (s.head_width % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary embedding turns pairs: --head_width=", s.head_width, " is odd"));
  }
  return absl::OkStatus();
}

int64_t OpCase::size_bytes() const {
  int64_t total = 0;
  for (const int64_t bytes : buffer_bytes) total += Room(bytes);
  return total;
}

Op OpCase::Bind(std::byte* base) const {
  std::vector<std::byte*> buffers;
  for (const int64_t bytes : buffer_bytes) {
    buffers.push_back(base);
    base += Room(bytes);
  }
  Op bound = op;
  VisitOperands(bound, [&](absl::string_view, Tensor& t, Access) {
    if (t.present()) t.data = buffers[t.where.symbol] + t.where.offset_bytes;
  });
  return bound;
}

std::vector<OpCase> OpCases(const OpSizes& sizes, DType dtype) {
  OpCaseMaker maker(sizes, dtype);
  std::vector<OpCase> cases;
  AddEmbedding(maker, cases);
  AddRmsNorm(maker, cases);
  AddLayerNorm(maker, cases);
  AddActivations(maker, cases);
  AddCrossEntropy(maker, cases);
  AddSquaredError(maker, cases);
  AddRows(maker, cases);
  AddFloat8(maker, cases);
  AddBlockwiseFloat8(maker, cases);
  if (dtype != DType::kFloat32) AddFloat8Sources(maker, cases);
  AddOpsOnFlatGroups(maker, cases);
  AddAttention(maker, cases);
  AddCachedAttention(maker, cases);
  AddMatMuls(maker, cases);
  return cases;
}

OpCase SquareMatMul(const OpSizes& sizes, DType dtype) {
  OpCaseMaker m(sizes, dtype);
  const int64_t n = sizes.square;
  const MatMul op{.a = m.Act({n, n}), .b = m.Act({n, n}), .c_MN = m.F32({n, n})};
  return m.Finish(op, "square", SizesText(op));
}

std::vector<std::string> OpsWithoutCase(const std::vector<OpCase>& cases) {
  std::set<std::string> covered;
  for (const OpCase& c : cases) {
    covered.insert(Text(NameOf(c.op)));
  }
  std::vector<std::string> missing;
  // An Update has the name of its rule.
  for (const std::vector<std::string>& names : {NamesOf<OpKinds::variant>(), NamesOf<UpdateRule>()}) {
    for (const std::string& name : names) {
      if (covered.count(name) == 0) missing.push_back(name);
    }
  }
  return missing;
}

}  // namespace shale
