// The sections of ExplainText, in their order. Each is a title, what it says, and an empty line; or nothing if it does
// not concern the job.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/report/alternatives.h"

namespace shale {

std::string ExplainWhereBytesGo(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainMicroBatches(const Alternatives& alternatives);
std::string ExplainUpdate(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainCheckpointing(const Alternatives& alternatives);
absl::StatusOr<std::string> ExplainOffload(const Alternatives& alternatives);

// Describes no_sync of other trainers, which is accumulation NO_SYNC here. ZERO2 has no NO_SYNC: strategy ZERO1
// takes its place.
std::string ExplainNoSync(const Alternatives& alternatives);
std::string ExplainStrategies(const Alternatives& alternatives);

}  // namespace shale
