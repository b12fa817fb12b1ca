#include "engine/run/generate/weights_only.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/memory/plan.h"
#include "engine/files/checkpoint/base_values.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/plan/config/job_files.h"
#include "engine/plan/planner/draft.h"
#include "engine/strings/printing.h"
#include "kernels/check.h"

namespace shale {

Job WithWeightsOnly(Job job) {
  job.batch.global_batch = job.batch.micro_batch;
  job.sharding = {.strategy = Strategy::kDdp, .accumulation = Accumulation::kNoSync, .ranks = 1};
  job.runtime.threads_per_rank = 0;
  job.checkpoint = {};  // Nothing is saved.
  // Without momentum, SGD keeps no states. Frozen weights stay as the checkpoint stores them.
  job.optimizer = {.kind = OptimizerKind::kSgd,
                   .train_only = job.optimizer.train_only,
                   .frozen_weights = job.optimizer.frozen_weights};
  job.precision.gradient_shards = GradientShards::kFloat32;  // DDP has no shards.
  job.precision.reduce = ReducePrecision::kFloat32;
  job.memory.offload_state = {};
  job.memory.keep_gradients = false;  // There are none.
  job.memory.budget_bytes = 0;        // That of the run was for its own machine, and for training.
  return job;
}

absl::StatusOr<std::unique_ptr<WeightsOnly>> WeightsOnly::Create(const Job& job, const BackendFactory& create_backend,
                                                                 const WeightsUse& use) {
  auto weights = absl::WrapUnique(new WeightsOnly(job));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, create_backend(job));
  SHALE_RETURN_IF_ERROR(weights->Plan(*backend, use));
  SHALE_RETURN_IF_ERROR(weights->CheckBudget(*backend));
  std::vector<ProgramAndPlan> users;
  for (const PlannedProgram& program : weights->programs_) users.push_back({program.step.program, program.memory});
  SHALE_ASSIGN_OR_RETURN(
      weights->ranks_,
      LocalRanks::Create(*backend, {.programs = users, .host_memory = PlanHostMemory(users, kReadStagingBytes)},
                         weights->peak_bytes_));
  return weights;
}

absl::Status WeightsOnly::Plan(const Backend& backend, const WeightsUse& use) {
  SHALE_CHECK(use.evaluation || use.generation);
  const std::unique_ptr<Ops> ops = backend.CreateOps(/*ranks=*/1, /*device=*/nullptr);
  StepOptions options = StepOptionsFor(job_);
  if (job_.precision.compute != ComputePrecision::kFloat32) options.master = MasterWeights::kNone;
  if (use.generation) {
    SHALE_ASSIGN_OR_RETURN(programs_, PlanGeneration(job_, options, *use.generation, *ops));
  }
  if (use.evaluation) {
    SHALE_ASSIGN_OR_RETURN(PlannedProgram evaluation, PlanProgram(job_, options, GraphMode::kEvaluation, *ops));
    programs_.push_back(std::move(evaluation));
    evaluates_ = true;
  }
  for (const PlannedProgram& program : programs_) peak_bytes_ = std::max(peak_bytes_, program.memory.peak_bytes);
  return absl::OkStatus();
}

absl::Status WeightsOnly::CheckBudget(const Backend& backend) const {
  SHALE_ASSIGN_OR_RETURN(const Budget budget, BudgetOf(job_, backend.machine().default_budget));
  if (peak_bytes_ <= budget.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "needs ", FormatBytes(peak_bytes_), ", budget ", FormatBytes(budget.bytes),
      budget.origin.empty() ? "" : absl::StrCat(" (", budget.origin, ")"), ", ",
      FormatBytes(peak_bytes_ - budget.bytes), " too little; ask for fewer sequences at once, or for shorter ones"));
}

LocalState WeightsOnly::state() {
  const PlannedProgram& any = programs_.front();  // All have the same state.
  return LocalState(any.graph, any.step.state, any.memory, *ranks_);
}

absl::Status WeightsOnly::Restore(const CheckpointReader& checkpoint, const std::string& base_folder) {
  SHALE_RETURN_IF_ERROR(CheckSameParameters(checkpoint.manifest().parameters, programs_.front().graph));
  SHALE_ASSIGN_OR_RETURN(const OpenedBase base, OpenBase(checkpoint, job_.model, base_folder));
  const absl::Status restored = state().Restore(checkpoint, /*values_only=*/true);
  if (IsDamage(restored)) return absl::DataLossError(restored.message());
  SHALE_RETURN_IF_ERROR(restored);
  return base.read == nullptr ? absl::OkStatus() : RestoreBase(checkpoint, base);
}

absl::Status WeightsOnly::RestoreBase(const CheckpointReader& checkpoint, const OpenedBase& base) {
  const Manifest& manifest = checkpoint.manifest();
  uint64_t digest = 0;
  const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    return base.read(parameter.name, begin, values);
  };
  const absl::Status filled =
      state().Fill(read, {.frozen_only = true, .threads = FillThreads(job_), .digest_of_frozen = &digest});
  SHALE_RETURN_IF_ERROR(WithBase(filled, manifest, checkpoint.folder(), kBaseFlag));
  return CheckBaseDigest(manifest, checkpoint.folder(), base.folder, digest, kBaseFlag);
}

}  // namespace shale
