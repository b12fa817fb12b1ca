#include "engine/api/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

absl::Status CheckSampling(const SamplingOptions& o) {
  const auto wrong = [](absl::string_view name, double value, absl::string_view wanted) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; wanted ", wanted));
  };
  // The comparisons are false for NaN.
  if (!(o.repetition_penalty > 0)) return wrong("repetition_penalty", o.repetition_penalty, "a number above 0");
  if (!(o.temperature >= 0)) return wrong("temperature", o.temperature, "0 or more");
  if (o.top_k < 0) return wrong("top_k", static_cast<double>(o.top_k), "0 or more");
  if (!(o.top_p > 0 && o.top_p <= 1)) return wrong("top_p", o.top_p, "a number above 0 and up to 1");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return wrong("min_p", o.min_p, "a number from 0 to 1");
  return absl::OkStatus();
}

absl::Span<const float> Sampler::Penalized(absl::Span<const float> logits, absl::Span<const int32_t> text) {
  if (options_.repetition_penalty == 1) return logits;
  penalized_.assign(logits.begin(), logits.end());
  const float penalty = static_cast<float>(options_.repetition_penalty);
  // A token counts once, so the penalty starts from its own logit each time.
  for (const int32_t token : text) {
    if (token < 0 || token >= std::ssize(logits)) continue;
    penalized_[token] = logits[token] > 0 ? logits[token] / penalty : logits[token] * penalty;
  }
  return penalized_;
}

absl::StatusOr<int32_t> Sampler::Draw(absl::Span<const float> raw_logits, absl::Span<const int32_t> text) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  SHALE_CHECK(!raw_logits.empty());
  for (size_t token = 0; token < raw_logits.size(); ++token) {
    if (std::isnan(raw_logits[token]) || raw_logits[token] == kInfinity) {
      return absl::DataLossError(absl::StrCat("the model gives token ", token, " the logit ", raw_logits[token],
                                              ": its weights are damaged, or training diverged"));
    }
  }
  const absl::Span<const float> logits = Penalized(raw_logits, text);
  const auto more_likely = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const int64_t size = std::ssize(logits);
  candidates_.resize(size);
  std::iota(candidates_.begin(), candidates_.end(), 0);
  const int64_t wanted = options_.temperature == 0 ? 1 : (options_.top_k == 0 ? size : std::min(options_.top_k, size));
  std::partial_sort(candidates_.begin(), candidates_.begin() + wanted, candidates_.end(), more_likely);
  candidates_.resize(wanted);
  const float best = logits[candidates_[0]];
  if (wanted == 1 || best == -kInfinity) return candidates_[0];

  // Relative to the most likely token, whose weight is 1.
  sums_.clear();
  double sum = 0;
  for (int32_t token : candidates_) {
    sum += std::exp((static_cast<double>(logits[token]) - best) / options_.temperature);
    sums_.push_back(sum);
  }
  size_t kept = sums_.size();
  if (options_.top_p < 1) {
    const auto enough = std::lower_bound(sums_.begin(), sums_.end(), options_.top_p * sum);
    kept = std::min<size_t>(enough - sums_.begin() + 1, kept);
  }
  while (kept > 1 && sums_[kept - 1] - sums_[kept - 2] < options_.min_p) --kept;
  sums_.resize(kept);
  const double at = static_cast<double>(random_() >> 11) * 0x1p-53 * sums_.back();
  const auto it = std::upper_bound(sums_.begin(), sums_.end(), at);
  return candidates_[std::min<int64_t>(it - sums_.begin(), std::ssize(sums_) - 1)];
}

}  // namespace shale
