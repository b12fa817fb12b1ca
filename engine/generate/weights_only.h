// WeightsOnly: the weights of a trained model on one rank, and programs that use them without training.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backends/job_backend.h"
#include "engine/checkpoint/reader.h"
#include "engine/config/job.h"
#include "engine/hugging_face/base.h"
#include "engine/planner/generation_size.h"
#include "engine/planner/job_plan.h"
#include "engine/runtime/local_ranks.h"
#include "engine/state/local_state.h"

namespace shale {

// Returns a job as programs run it that do not train: one rank, all cores, no gradients, and no state but the weights.
// The default budget of the machine holds (JobPlan::budget), unless the caller sets memory.budget_bytes again.
Job WithWeightsOnly(Job job);

// Which programs use the weights.
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

  // Sets the weights from a checkpoint, and from its base if it leaves out that: the base in `base_folder`, or where
  // the run had it if that is empty. Returns FailedPrecondition if the checkpoint is of another model, or if the folder
  // has not the base of the checkpoint, and DataLoss if the checkpoint is damaged. Errors of the machine would occur
  // with every checkpoint, and are returned as they are.
  absl::Status Restore(const CheckpointReader& checkpoint, const std::string& base_folder = "");
  // Returns access to the weights, to set them otherwise.
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
  std::vector<PlannedProgram> programs_;  // Those of generation; then that of evaluation. Never changed once planned.
  bool evaluates_ = false;
  int64_t peak_bytes_ = 0;
  std::unique_ptr<LocalRanks> ranks_;
};

}  // namespace shale
