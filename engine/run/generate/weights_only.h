// WeightsOnly: the weights of a trained model on one rank, and programs that use them without training.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/api/checkpoint.h"
#include "engine/api/export.h"
#include "engine/api/plan.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/state/local_state.h"

namespace shale {

// Returns the job for programs that use the weights without training: one rank, all cores, no gradients, and no state
// of the optimizer. WeightsOnly keeps no masters, whatever precision.master says. Its budget is the default of the
// machine (JobPlan::budget), unless the caller sets memory.budget_bytes again.
Job WithWeightsOnly(Job job);

// Which programs are planned.
struct WeightsUse {
  bool evaluation = false;                   // The loss of batches, of batch.micro_batch sequences.
  std::optional<GenerationSize> generation;  // Next tokens.
};

// Plans the programs, whose persistent buffers have the same addresses, and owns the rank that they run on. Used by one
// thread at a time.
class WeightsOnly {
 public:
  // Plans and allocates. `job` is WithWeightsOnly of a validated job. Returns ResourceExhausted if the programs do not
  // fit the budget, and otherwise the errors of PlanProgram, BuildGeneration and of the backend. The weights are not
  // set yet.
  static absl::StatusOr<std::unique_ptr<WeightsOnly>> Create(const Job& job, const BackendFactory& create_backend,
                                                             const WeightsUse& use);

  // Sets the weights from a checkpoint. If the checkpoint leaves its base out, reads that from `base_folder`, or from
  // where the run had it if `base_folder` is empty. Returns FailedPrecondition if the checkpoint is of another model,
  // or if the folder does not have its base, and DataLoss if the checkpoint is damaged. Other errors are those of the
  // machine, which another checkpoint would not avoid.
  absl::Status Restore(const CheckpointReader& checkpoint, const std::string& base_folder = "");
  // Returns access to the weights, for callers that set them from something other than a checkpoint.
  LocalState state();

  const Job& job() const { return job_; }
  LocalRanks& ranks() { return *ranks_; }
  const LocalRanks& ranks() const { return *ranks_; }
  // Returns the program of evaluation, and those of generation. REQUIRES: they are in use.
  const PlannedProgram& evaluation() const { return programs_.back(); }
  absl::Span<const PlannedProgram> generation() const {
    return absl::MakeConstSpan(programs_.data(), programs_.size() - evaluates_);
  }
  // Returns the bytes of the arena that the plan needs.
  int64_t planned_peak_bytes() const { return peak_bytes_; }

 private:
  explicit WeightsOnly(const Job& job) : job_(job) {}
  absl::Status Plan(const Backend& backend, const WeightsUse& use);
  absl::Status RestoreBase(const CheckpointReader& checkpoint, const OpenedBase& base);
  absl::Status CheckBudget(const Backend& backend) const;

  const Job job_;
  std::vector<PlannedProgram> programs_;  // Of generation, then that of evaluation. Never changed once planned.
  bool evaluates_ = false;
  int64_t peak_bytes_ = 0;
  std::unique_ptr<LocalRanks> ranks_;
};

}  // namespace shale
