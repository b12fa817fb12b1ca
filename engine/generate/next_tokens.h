// NextTokens computes the logits of the token that follows a context, and draws tokens from them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/sampler.h"
#include "engine/generate/sequences.h"

namespace shale {

// Borrows the sequences. Used by one thread at a time.
class NextTokens {
 public:
  explicit NextTokens(Sequences& sequences) : sequences_(sequences), tokens_(sequences.size()) {}

  // Returns the logits [V] of the token that follows `context`, computed from as many of its last tokens as a sequence
  // may hold. They depend on nothing but those and the weights. Valid until the next call. Returns InvalidArgument if
  // `context` is empty or if one of those tokens is outside the vocabulary, and otherwise the error of the program.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);

  // Draws tokens after each prompt, all of them at once, and calls emit(i, token) with each token of prompt i as it is
  // drawn. A sequence ends early if `emit` returns false for it. Returns InvalidArgument if there is no prompt, or more
  // of them than sequences, or if options are out of range, and otherwise the errors of Logits and Sampler::Draw.
  absl::Status GenerateAll(absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                           absl::FunctionRef<bool(int64_t sequence, int32_t token)> emit);
  // Does the same for one prompt: draws `count` tokens.
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);

 private:
  // Prepares a sequence for the next Append, which then computes the logits after `context`, or after as many of its
  // last tokens as a sequence may hold. If `keep`, the sequence keeps the tokens that it holds and with which the
  // context begins; otherwise it keeps none. Puts the other tokens of the context into tokens_.
  absl::Status Begin(int64_t sequence, absl::Span<const int32_t> context, bool keep);

  Sequences& sequences_;
  std::vector<std::vector<int32_t>> tokens_;  // By sequence, the tokens that the next Append adds.
};

}  // namespace shale
