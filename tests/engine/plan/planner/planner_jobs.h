// Small jobs, and ops that are only asked for sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "engine/compile/memory/machine.h"
#include "engine/plan/config/job.h"
#include "kernels/op_backend.h"

namespace shale {

// Ops that all need the same amount of scratch, and none of which can run.
class ScratchOnlyOps : public Ops {
 public:
  explicit ScratchOnlyOps(int64_t scratch_bytes = 1000) : scratch_bytes_(scratch_bytes) {}
  int64_t ScratchBytes(const Op&) const override { return scratch_bytes_; }
  const Ops* host() const override { return this; }

 protected:
  absl::Status Enqueue(const Op&, Scratch, Stream&) override { return absl::UnimplementedError("not to be run"); }

 private:
  const int64_t scratch_bytes_;
};

// Returns a machine with such ops for any number of ranks.
template <class SomeOps = ScratchOnlyOps>
Machine MachineOf(DefaultBudget default_budget = {}) {
  return {.create_ops = [](int64_t) { return std::make_unique<SomeOps>(); },
          .default_budget = std::move(default_budget)};
}

// Awkward sizes: five ranks share parameters of 12, 20 and 28 columns.
inline Job SmallDecoderJob(bool tied) {
  Job job;
  job.name = "small";
  DecoderConfig model;
  model.vocabulary = 50;
  model.width = 12;
  model.layers = 3;
  model.heads = 2;
  model.kv_heads = 1;
  model.head_width = 6;
  model.hidden = 20;
  model.max_positions = 16;
  model.tied_head = tied;
  job.model = model;
  job.data.path = "/nowhere";
  job.batch = {.global_batch = 40, .micro_batch = 2, .sequence_length = 7};
  job.sharding.ranks = 5;
  job.memory.loss_chunk_tokens = 4;
  job.memory.budget_bytes = int64_t{1} << 40;
  job.lr_schedule.steps = 1;
  job.telemetry.run_folder = "runs/small";
  return job;
}

// Sizes that allow matmuls in fp8, which the job has.
inline Job SmallFloat8Job() {
  Job job = SmallDecoderJob(false);
  auto& model = std::get<DecoderConfig>(job.model);
  model.width = 32;
  model.head_width = 16;
  model.hidden = 48;
  job.batch.sequence_length = 16;
  job.precision = {.compute = ComputePrecision::kBFloat16, .matmuls = MatMulPrecision::kFloat8};
  return job;
}

inline Job SmallMlpJob() {
  Job job = SmallDecoderJob(false);
  MlpConfig model;
  model.vocabulary = 50;
  model.embedding = 6;
  model.hidden = 28;
  model.layers = 3;
  job.model = model;
  return job;
}

}  // namespace shale
