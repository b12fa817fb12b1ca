#include "tests/engine/generation_rig.h"

#include <algorithm>
#include <utility>

#include "engine/compile/memory/plan.h"
#include "engine/compile/model/adapter.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/filling.h"
#include "engine/run/state/local_state.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

Job JobOf(const GenerationSetting& setting) {
  Job job;
  job.model = setting.model;
  job.batch = {.global_batch = setting.ranks, .micro_batch = 1, .sequence_length = setting.window};
  job.sharding.ranks = setting.ranks;
  job.sharding.strategy = setting.ranks > 1 ? Strategy::kFullShard : Strategy::kDdp;
  job.sharding.accumulation = Accumulation::kNoSync;
  job.optimizer.kind = OptimizerKind::kSgd;
  job.precision.compute = setting.precision;
  job.precision.fp32_logits = setting.fp32_logits;
  if (setting.precision == ComputePrecision::kBFloat16) job.precision.master = MasterWeights::kNone;
  return job;
}

// Adapters are not those of a model that has not trained, which add nothing.
absl::Status RandomValues(Parameter parameter, int64_t begin, absl::Span<float> values) {
  if (IsAdapterParameter(parameter.name)) parameter.initializer = {Initializer::Kind::kNormal, 0.2};
  FillInitialValues(parameter, 3, begin, values);
  return absl::OkStatus();
}

}  // namespace

GenerationRig::GenerationRig(const GenerationSetting& setting, bool cached, const ReadValues& read)
    : backend_(TestedBackend(OpsKind::kFast, /*threads=*/2)) {
  const Job job = JobOf(setting);
  const StepOptions options = StepOptionsFor(job);
  const std::unique_ptr<Ops> ops = backend_->CreateOps(setting.ranks, /*device=*/nullptr);
  if (cached) {
    absl::StatusOr<std::vector<PlannedProgram>> programs = PlanGeneration(job, options, setting.size, *ops);
    SHALE_CHECK(programs.ok()) << programs.status();
    programs_ = *std::move(programs);
  } else {
    absl::StatusOr<PlannedProgram> program = PlanProgram(job, options, GraphMode::kLogits, *ops);
    SHALE_CHECK(program.ok()) << program.status();
    programs_.push_back(*std::move(program));
  }
  std::vector<ProgramAndPlan> users;
  for (const PlannedProgram& program : programs_) {
    users.push_back({program.step.program, program.memory});
    peak_bytes_ = std::max(peak_bytes_, program.memory.peak_bytes);
  }
  auto ranks = LocalRanks::Create(
      *backend_, {.mesh = options.mesh, .programs = users, .host_memory = PlanHostMemory(users, kReadStagingBytes)},
      peak_bytes_);
  SHALE_CHECK(ranks.ok()) << ranks.status();
  ranks_ = *std::move(ranks);
  const PlannedProgram& any = programs_[0];  // All have the same state.
  const absl::Status filled =
      LocalState(any.graph, any.step.state, any.memory, *ranks_).Fill(read ? read : ReadValues(RandomValues));
  SHALE_CHECK(filled.ok()) << filled;
  auto sequences = Sequences::Create(*ranks_, programs_, /*padding=*/0, {});
  SHALE_CHECK(sequences.ok()) << sequences.status();
  sequences_ = *std::move(sequences);
}

std::vector<float> GenerationRig::Append(const std::vector<int32_t>& tokens) {
  std::vector<std::vector<int32_t>> all(sequences_->size());
  all[0] = tokens;
  const absl::Status status = sequences_->Append(all);
  EXPECT_TRUE(status.ok()) << status;
  return Logits(0);
}

std::vector<float> GenerationRig::Logits(int64_t b) const {
  return {sequences_->logits(b).begin(), sequences_->logits(b).end()};
}

std::vector<float> GenerationRig::After(const std::vector<int32_t>& context) {
  sequences_->Restart();
  return Append(context);
}

}  // namespace shale::testing
