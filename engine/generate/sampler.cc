#include "engine/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<int32_t> Sampler::Draw(absl::Span<const float> logits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  SHALE_CHECK(!logits.empty());
  for (size_t token = 0; token < logits.size(); ++token) {
    if (std::isnan(logits[token]) || logits[token] == kInfinity) {
      return absl::DataLossError(absl::StrCat("the model gives token ", token, " the logit ", logits[token],
                                              ": its weights are damaged, or training diverged"));
    }
  }
  const auto more_likely = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const int64_t size = std::ssize(logits);
  candidates_.resize(size);
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const int64_t wanted = options_.temperature == 0 ? 1 : (options_.top_k == 0 ? size : std::min(options_.top_k, size));
  std::partial_sort(candidates_.begin(), candidates_.begin() + wanted, candidates_.end(), more_likely);
  candidates_.resize(wanted);
  const float best = logits[candidates_[0]];
  if (wanted == 1 || best == -kInfinity) return candidates_[0];

  sums_.clear();
  double sum = 0;
  for (int32_t token : candidates_) {
    sum += std::exp((static_cast<double>(logits[token]) - best) / options_.temperature);
    sums_.push_back(sum);
  }
  const double at = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
  const auto it = std::upper_bound(sums_.begin(), sums_.end(), at);
  return candidates_[std::min<int64_t>(it - sums_.begin(), wanted - 1)];
}

}  // namespace shale
