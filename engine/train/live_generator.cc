#include "engine/api/trainer_parts.h"
#include "engine/generate/next_tokens.h"
#include "engine/train/run_health.h"
#include "kernels/check.h"

namespace shale {

absl::Status LiveGenerator::WithNextTokens(absl::FunctionRef<absl::Status(NextTokens&)> generate) {
  absl::Status status;
  if (health_.damaged()) {
    status = absl::FailedPreconditionError("a failure left the state unusable: nothing can be generated");
  } else if (sequences_ == nullptr) {
    return absl::FailedPreconditionError("the job plans no generation: set runtime.generate");
  } else {
    // Every call begins without tokens, so it does not depend on what steps have stored over the cache since the last.
    NextTokens next(*sequences_);
    status = generate(next);
    if (sequences_->failed()) status = health_.Damage(status);
  }
  if (health_.damaged()) health_.TellFailure(status, "generation");
  return status;
}

absl::StatusOr<absl::Span<const float>> LiveGenerator::Logits(absl::Span<const int32_t> context) {
  absl::StatusOr<absl::Span<const float>> logits;
  SHALE_RETURN_IF_ERROR(WithNextTokens([&](NextTokens& next) {
    logits = next.Logits(context);
    return logits.status();
  }));
  return logits;
}

absl::Status LiveGenerator::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                                     absl::FunctionRef<bool(int32_t)> emit) {
  return WithNextTokens([&](NextTokens& next) { return next.Generate(prompt, count, sampling, emit); });
}

}  // namespace shale
