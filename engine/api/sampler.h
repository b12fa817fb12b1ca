// Draws the next token from a model's logits.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shale {

// Says how a token is drawn. The steps apply in the order of the fields, as in Hugging Face's transformers.
struct SamplingOptions {
  // Divides positive logits of tokens that the text has already, and multiplies negative ones. 1: no penalty.
  double repetition_penalty = 1;
  double temperature = 0.8;  // Divides the logits. 0: always takes the most likely token.
  int64_t top_k = 40;        // Draws only among the k most likely tokens. 0: among all.
  double top_p = 1;          // Draws only among the fewest most likely tokens whose probabilities sum to p.
  double min_p = 0;          // Draws only among tokens that are at least p times as likely as the most likely one.
  uint64_t seed = 1;
};

// Says how texts are generated.
struct GenerateOptions {
  int64_t count = 200;  // The most tokens that follow each prompt.
  // Sequence i draws with the seed sampling.seed + i.
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // Each ends the sequence that draws it, and is not emitted.
  // Whether the sequence goes on from the call before, as a conversation does: tokens that it still holds and that the
  // prompt begins with are then not computed again. The last bits of logits may differ from those of a sequence that
  // begins anew.
  bool goes_on = false;
};

// Returns InvalidArgument, which names the option, if one is out of range.
absl::Status CheckSampling(const SamplingOptions& options);

// A draw depends only on the options, the logits, the text and the number of earlier draws. Used by one thread.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {}

  // Returns a token in [0, logits.size()). Of equal logits, the smaller token counts as more likely. `text` holds the
  // tokens that repetition_penalty is for. Returns DataLoss if a logit is NaN or +infinity: then the weights are
  // damaged or training diverged.
  absl::StatusOr<int32_t> Draw(absl::Span<const float> logits, absl::Span<const int32_t> text = {});

 private:
  // Returns the logits with the penalty.
  absl::Span<const float> Penalized(absl::Span<const float> logits, absl::Span<const int32_t> text);

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::vector<int32_t> candidates_;
  std::vector<double> sums_;
  std::vector<float> penalized_;
};

}  // namespace shale
