// Draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shale {

struct SamplingOptions {
  double temperature = 0.8;  // Logits are divided by it; 0: always the most likely token.
  int64_t top_k = 40;        // Draw among the k most likely only; 0: among all.
  uint64_t seed = 1;
};

// Draws depend on the options, the logits and the number of draws before only. One thread.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  // A token in [0, logits.size()). Of equal logits the smaller token counts as more likely. DataLoss if a logit is NaN
  // or +infinity: the weights are damaged.
  absl::StatusOr<int32_t> Draw(absl::Span<const float> logits);

 private:
  const SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<int32_t> candidates_;
  std::vector<double> sums_;
};

}  // namespace shale
