#include "engine/generate/generator.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/checkpoint/newest.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/checkpoint/saved_file.h"
#include "engine/checkpoint/staging.h"
#include "engine/config/parse.h"
#include "engine/config/set_model.h"
#include "engine/generate/next_tokens.h"
#include "engine/memory/host_plan.h"
#include "engine/planner/job_plan.h"
#include "engine/runtime/local_ranks.h"
#include "engine/state/local_state.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the job as generation runs it: one sequence, one rank, all cores, and no state but the weights.
Job ForGeneration(Job job) {
  job.batch.global_batch = job.batch.micro_batch = 1;
  job.sharding = {.strategy = Strategy::kDdp, .accumulation = Accumulation::kNoSync, .ranks = 1};
  job.runtime.threads_per_rank = 0;
  job.checkpoint = {};  // Nothing is saved.
  // Without momentum, SGD keeps no states. Frozen weights stay as the checkpoint stores them.
  job.optimizer = {.kind = OptimizerKind::kSgd,
                   .train_only = job.optimizer.train_only,
                   .frozen_weights = job.optimizer.frozen_weights};
  if (job.precision.compute == ComputePrecision::kBFloat16) job.precision.master = MasterWeights::kNone;
  job.precision.gradient_shards = GradientShards::kFloat32;  // DDP has no shards.
  job.memory.offload_state = {};
  job.memory.keep_gradients = false;  // There are none.
  return job;
}

}  // namespace

class Generator::Impl {
 public:
  absl::Status Create(const CheckpointReader& checkpoint, const BackendFactory& create_backend,
                      const std::optional<CustomModel>& model, const GenerationSize& size) {
    SHALE_ASSIGN_OR_RETURN(
        Job job, ParseRecordedJob(checkpoint.manifest().job, absl::StrCat("the job in ", checkpoint.folder())));
    if (model) SHALE_RETURN_IF_ERROR(SetModel(*model, job));
    job_ = ForGeneration(job);
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, create_backend(job_));
    const std::unique_ptr<Ops> ops = backend->CreateOps(/*ranks=*/1, /*device=*/nullptr);
    SHALE_ASSIGN_OR_RETURN(programs_, PlanGeneration(job_, StepOptionsFor(job_), size, *ops));
    std::vector<ProgramAndPlan> users;
    for (const PlannedProgram& program : programs_) {
      users.push_back({program.step.program, program.memory});
      peak_bytes_ = std::max(peak_bytes_, program.memory.peak_bytes);
    }
    SHALE_ASSIGN_OR_RETURN(
        ranks_,
        LocalRanks::Create(*backend, {.programs = users, .host_memory = PlanHostMemory(users, kReadStagingBytes)},
                           peak_bytes_));
    SHALE_ASSIGN_OR_RETURN(sequences_, Sequences::Create(*ranks_, programs_, PaddingToken(job_), {}));
    next_ = std::make_unique<NextTokens>(*sequences_);
    const PlannedProgram& any = programs_.front();  // All have the same state.
    SHALE_RETURN_IF_ERROR(CheckSameParameters(checkpoint.manifest().parameters, any.graph));
    const absl::Status restored =
        LocalState(any.graph, any.step.state, any.memory, *ranks_).Restore(checkpoint, /*values_only=*/true);
    // DataLoss makes FromRun try an older checkpoint. Errors of the job or the machine would occur with every
    // checkpoint and are returned as they are.
    if (IsDamage(restored)) return absl::DataLossError(restored.message());
    return restored;
  }

  NextTokens& next() { return *next_; }
  const Sequences& sequences() const { return *sequences_; }
  int64_t planned_peak_bytes() const { return peak_bytes_; }
  int64_t measured_peak_bytes() const { return ranks_->measured_peak_bytes(); }
  bool is_text() const { return job_.data.format == DataFormat::kText && !job_.data.has_tokenizer(); }

 private:
  Job job_;
  std::vector<PlannedProgram> programs_;
  int64_t peak_bytes_ = 0;
  std::unique_ptr<LocalRanks> ranks_;
  std::unique_ptr<Sequences> sequences_;
  std::unique_ptr<NextTokens> next_;
};

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::~Generator() = default;

int64_t Generator::vocabulary() const { return impl_->sequences().vocabulary(); }
int64_t Generator::positions() const { return impl_->sequences().positions(); }
int64_t Generator::planned_peak_bytes() const { return impl_->planned_peak_bytes(); }
int64_t Generator::measured_peak_bytes() const { return impl_->measured_peak_bytes(); }
bool Generator::is_text() const { return impl_->is_text(); }

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const CheckpointReader& checkpoint,
                                                             const BackendFactory& create_backend,
                                                             const std::optional<CustomModel>& model,
                                                             const GenerationSize& size) {
  auto impl = std::make_unique<Impl>();
  SHALE_RETURN_IF_ERROR(impl->Create(checkpoint, create_backend, model, size));
  return absl::WrapUnique(new Generator(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::FromRun(const std::string& run_folder,
                                                              const BackendFactory& create_backend,
                                                              const std::optional<CustomModel>& model,
                                                              const GenerationSize& size) {
  std::unique_ptr<Generator> generator;
  const std::string folder = RunCheckpointsPath(run_folder);
  absl::Status created;
  const auto create = [&](const CheckpointReader& checkpoint) {
    absl::StatusOr<std::unique_ptr<Generator>> one = Create(checkpoint, create_backend, model, size);
    created = one.status();
    if (one.ok()) generator = *std::move(one);
    return absl::IsDataLoss(created) ? created : absl::OkStatus();
  };
  SHALE_ASSIGN_OR_RETURN(NewestCheckpoint newest, UseNewestCheckpoint(folder, create));
  SHALE_RETURN_IF_ERROR(created);
  if (generator == nullptr) return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", folder));
  generator->passed_over_ = std::move(newest.passed_over);
  return generator;
}

absl::StatusOr<std::vector<int32_t>> Generator::TextPrompt(absl::string_view text) const {
  if (!is_text()) {
    return absl::InvalidArgumentError(
        "the model was trained on token files, whose tokenizer is not known here; give the prompt as tokens");
  }
  if (text.empty()) text = "\n";
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    tokens.push_back(static_cast<uint8_t>(text[i]));
    if (tokens.back() >= vocabulary()) {
      return absl::InvalidArgumentError(absl::StrCat("the prompt's byte ", tokens.back(), " at offset ", i,
                                                     " is outside the model's vocabulary of ", vocabulary(),
                                                     " tokens"));
    }
  }
  return tokens;
}

absl::StatusOr<absl::Span<const float>> Generator::Logits(absl::Span<const int32_t> context) {
  return impl_->next().Logits(context);
}

absl::Status Generator::GenerateAll(absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                                    absl::FunctionRef<bool(int64_t, int32_t)> emit) {
  return impl_->next().GenerateAll(prompts, options, emit);
}

absl::Status Generator::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                                 absl::FunctionRef<bool(int32_t)> emit) {
  return impl_->next().Generate(prompt, count, sampling, emit);
}

}  // namespace shale
