// Draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shale {

struct SamplingOptions {
  double temperature = 0.8;  // Divides the logits. 0: always takes the most likely token.
  int64_t top_k = 40;        // Draws only among the k most likely tokens. 0: among all.
  uint64_t seed = 1;
};

// A draw depends only on the options, the logits and the number of earlier draws. Used by one thread.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  // Returns a token in [0, logits.size()). Of equal logits, the smaller token counts as more likely. Returns DataLoss
  // if a logit is NaN or +infinity: then the weights are damaged or training diverged.
  absl::StatusOr<int32_t> Draw(absl::Span<const float> logits);

 private:
  const SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<int32_t> candidates_;
  std::vector<double> sums_;
};

}  // namespace shale
