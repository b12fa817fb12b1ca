#include "engine/generate/generator.h"

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
  job.checkpoint = {};                            // Nothing is saved.
  job.optimizer = {.kind = OptimizerKind::kSgd};  // Without momentum, it keeps no states.
  if (job.precision.compute == ComputePrecision::kBFloat16) job.precision.master = MasterWeights::kNone;
  job.precision.gradient_shards = GradientShards::kFloat32;  // DDP has no shards.
  job.memory.offload_state = {};
  return job;
}

}  // namespace

class Generator::Impl {
 public:
  absl::Status Create(const CheckpointReader& checkpoint, const BackendFactory& create_backend,
                      const std::optional<CustomModel>& model) {
    SHALE_ASSIGN_OR_RETURN(
        Job job, ParseRecordedJob(checkpoint.manifest().job, absl::StrCat("the job in ", checkpoint.folder())));
    if (model) SHALE_RETURN_IF_ERROR(SetModel(*model, job));
    job_ = ForGeneration(job);
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, create_backend(job_));
    const std::unique_ptr<Ops> ops = backend->CreateOps(/*ranks=*/1, /*device=*/nullptr);
    SHALE_ASSIGN_OR_RETURN(program_, PlanProgram(job_, StepOptionsFor(job_), GraphMode::kLogits, *ops));
    SHALE_ASSIGN_OR_RETURN(
        ranks_, LocalRanks::Create(
                    *backend,
                    {.programs = {{program_.step.program, program_.memory}},
                     .host_memory = PlanHostMemory({{program_.step.program, program_.memory}}, kReadStagingBytes)},
                    program_.memory.peak_bytes));
    SHALE_ASSIGN_OR_RETURN(next_, NextTokens::Create(*ranks_, program_, PaddingToken(job_), {}));
    SHALE_RETURN_IF_ERROR(CheckSameParameters(checkpoint.manifest().parameters, program_.graph));
    const absl::Status restored = LocalState(program_.graph, program_.step.state, program_.memory, *ranks_)
                                      .Restore(checkpoint, /*values_only=*/true);
    // DataLoss makes FromRun try an older checkpoint. Errors of the job or the machine would occur with every
    // checkpoint and are returned as they are.
    if (IsDamage(restored)) return absl::DataLossError(restored.message());
    return restored;
  }

  NextTokens& next() { return *next_; }
  bool is_text() const { return job_.data.format == DataFormat::kText && !job_.data.has_tokenizer(); }
  int64_t vocabulary() const { return program_.graph.vocabulary; }

 private:
  Job job_;
  PlannedProgram program_;
  std::unique_ptr<LocalRanks> ranks_;
  std::unique_ptr<NextTokens> next_;
};

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::~Generator() = default;

int64_t Generator::vocabulary() const { return impl_->vocabulary(); }
bool Generator::is_text() const { return impl_->is_text(); }

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const CheckpointReader& checkpoint,
                                                             const BackendFactory& create_backend,
                                                             const std::optional<CustomModel>& model) {
  auto impl = std::make_unique<Impl>();
  SHALE_RETURN_IF_ERROR(impl->Create(checkpoint, create_backend, model));
  return absl::WrapUnique(new Generator(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::FromRun(const std::string& run_folder,
                                                              const BackendFactory& create_backend,
                                                              const std::optional<CustomModel>& model) {
  std::unique_ptr<Generator> generator;
  const std::string folder = RunCheckpointsPath(run_folder);
  absl::Status created;
  const auto create = [&](const CheckpointReader& checkpoint) {
    absl::StatusOr<std::unique_ptr<Generator>> one = Create(checkpoint, create_backend, model);
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

absl::Status Generator::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                                 absl::FunctionRef<bool(int32_t)> emit) {
  return impl_->next().Generate(prompt, count, sampling, emit);
}

}  // namespace shale
