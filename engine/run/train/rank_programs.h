// The ranks of this process and the programs that run on them: what a trainer allocates.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/plan.h"
#include "engine/api/trainer_options.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/runtime/profiler_ranges.h"

namespace shale {

struct RankPrograms {
  std::unique_ptr<LocalRanks> ranks;
  std::unique_ptr<ProfilerRanges> ranges;  // Null if no profiler wants them.
  std::unique_ptr<LocalProgram> train, evaluate;
  std::unique_ptr<Sequences> sequences;  // Null without runtime.generate.
  std::string why_no_ranges;             // If a profiler wants ranges, and gets none.

  // Returns a description of the devices (LocalRanks::description), with why a profiler gets no ranges.
  std::string Describe() const;
};

// Allocates the ranks and their programs. Borrows the job and its plan. `process_of_rank` has the process of each rank.
// `evaluates`: the run has evaluation data.
absl::StatusOr<RankPrograms> AllocateRanks(const ResolvedJob& resolved, std::vector<int> process_of_rank,
                                           bool evaluates, const TrainerOptions& options);

}  // namespace shale
