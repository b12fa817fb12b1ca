// The sections of ExplainText, in their order. Each function returns a title, a text and an empty line, or an empty
// string if the section does not concern the job.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/report/alternatives.h"

namespace shale {

std::string ExplainWhereBytesGo(const Alternatives& alternatives);
std::string ExplainAttention(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainMicroBatches(const Alternatives& alternatives);

// Compares K micro-batches with the same global batch as one micro-batch. For a job with K = 1, compares it with
// micro-batches of one sequence.
std::string ExplainOnePiece(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainHeadroom(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainLearningRate(const Job& job);
std::string ExplainPacking(const Job& job);
std::string ExplainMix(const Job& job);
std::string ExplainTargetWeights(const Job& job);
std::string ExplainState(const Alternatives& alternatives);
std::string ExplainUpdate(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainCheckpointing(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainOffload(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainStateOffload(const Alternatives& alternatives);

// Describes what other trainers call no_sync, which is accumulation NO_SYNC here. ZERO2 has no NO_SYNC, so the section
// then shows NO_SYNC with strategy ZERO1.
std::string ExplainNoSync(const Alternatives& alternatives);
std::string ExplainStrategies(const Alternatives& alternatives);

}  // namespace shale
