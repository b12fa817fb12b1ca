// The facts of decoders (engine/model/config.h).
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/model/adapter.h"
#include "engine/model/config.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

// Returns how many keys a query sees on average over a sequence, about S / 2 without a window.
double MeanKeys(int64_t sequence_length, int64_t window) {
  const double s = static_cast<double>(sequence_length);
  if (window <= 0 || window >= sequence_length) return s / 2;
  const double w = static_cast<double>(window);
  return w - w * w / (2 * s);
}

}  // namespace

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
  const Wide up = static_cast<Wide>(hidden) * (activation == Activation::kSwiGlu ? 2 : 1);
  const Wide norms = parallel_block && !parallel_norms ? 1 : 2;
  Wide block = wide * qkv + query * wide + wide * up + hidden * wide + norms * one_norm;
  if (qkv_bias) block += qkv;
  if (linear_bias) block += wide + up + wide;
  if (qk_norm) block += 2 * static_cast<Wide>(head_width);
  const Wide table = position == PositionKind::kLearned ? max_positions * wide : 0;
  return vocabulary * wide * (tied_head ? 1 : 2) + table + layers * block + one_norm + AdapterParameterCount(*this);
}

double DecoderConfig::WidestRow() const {
  const double qkv = static_cast<double>(heads + 2 * kv_heads) * head_width;
  return std::max({static_cast<double>(width), 2.0 * hidden, qkv});
}

double DecoderConfig::AttentionFlopsPerToken(int64_t sequence_length) const {
  const double attention_width = static_cast<double>(heads) * static_cast<double>(head_width);
  return 12 * static_cast<double>(layers) * attention_width * MeanKeys(sequence_length, attention_window);
}

std::string DecoderConfig::Description() const {
  return absl::StrCat("decoder, ", Plural(layers, "block"), " of width ", WithCommas(width), ", ",
                      Plural(heads, "head"), " of ", WithCommas(head_width),
                      kv_heads != heads ? absl::StrCat(" (", WithCommas(kv_heads), " for keys and values)") : "",
                      ", inner width ", WithCommas(hidden), ", vocabulary ", WithCommas(vocabulary),
                      tied_head ? ", tied head" : "",
                      adapter ? absl::StrCat(", adapters of rank ", WithCommas(adapter->rank)) : "");
}

}  // namespace shale
