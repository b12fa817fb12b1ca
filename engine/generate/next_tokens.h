// NextTokens computes what token follows a context, and draws it, with a logits program that is ready to run.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/config/job.h"
#include "engine/generate/sampler.h"
#include "engine/planner/job_plan.h"
#include "engine/runtime/local_ranks.h"

namespace shale {

// Returns the token that fills a window behind, or before, the tokens of a context.
int32_t PaddingToken(const Job& job);

// Runs the program on all local ranks, which compute the same. Every token costs one forward pass over a window of
// sequence_length tokens. Used by one thread at a time.
class NextTokens {
 public:
  // `program` computes the logits of one sequence (GraphMode::kLogits). Borrows it and the ranks. `padding` is
  // PaddingToken of the job.
  static absl::StatusOr<std::unique_ptr<NextTokens>> Create(LocalRanks& ranks, const PlannedProgram& program,
                                                            int32_t padding, const ExecutorOptions& options);

  int64_t vocabulary() const { return program_.graph.vocabulary; }
  // Returns whether the program failed. The ranks cannot be used again then.
  bool failed() const { return failed_; }

  // Returns the logits [V] of the token that follows `context`, computed from its last sequence_length tokens. Valid
  // until the next call. Returns InvalidArgument if `context` is empty or if one of those tokens is outside the
  // vocabulary, and otherwise the error of the program.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);

  // Draws `count` tokens after `prompt` and calls `emit` with each as it is drawn. Stops early if `emit` returns false.
  // Returns the errors of Logits and Sampler::Draw.
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);

 private:
  absl::Status Check(absl::Span<const int32_t> context) const;
  NextTokens(const PlannedProgram& program, int32_t padding, int ranks, std::unique_ptr<LocalProgram> run);

  const PlannedProgram& program_;
  const int32_t padding_;
  const int ranks_;
  const std::unique_ptr<LocalProgram> run_;
  std::vector<int32_t> window_;  // [S]
  std::vector<float> logits_;    // [V]
  bool failed_ = false;
};

}  // namespace shale
