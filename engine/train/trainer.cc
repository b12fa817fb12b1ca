#include "engine/train/trainer.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/config/parse.h"
#include "engine/data/batch_loader.h"
#include "engine/planner/explain.h"
#include "engine/runtime/world.h"
#include "engine/train/learning_rate.h"
#include "engine/train/parameter_store.h"

namespace shale {
namespace {

// The host's tokens of one program run, for every rank.
class HostBatch {
 public:
  HostBatch(const BatchLoader& loader, int64_t micro_batches)
      : loader_(loader),
        micro_batches_(micro_batches),
        tokens_(loader.shape().micro_batch * loader.shape().sequence_length),
        inputs_(loader.shape().ranks, std::vector<int32_t>(tokens_ * micro_batches)),
        targets_(inputs_) {}

  // Fills the tokens of `step` and returns what each rank's executor wants.
  absl::StatusOr<std::vector<StepInputs>> Fill(const StepSamples& step) {
    std::vector<StepInputs> all(inputs_.size());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      StepInputs& in = all[rank];
      in.inputs = inputs_[rank];
      in.targets = targets_[rank];
      for (int64_t k = 0; k < micro_batches_; ++k) {
        SHALE_RETURN_IF_ERROR(loader_.Fill(step, rank, k, absl::MakeSpan(inputs_[rank]).subspan(k * tokens_, tokens_),
                                           absl::MakeSpan(targets_[rank]).subspan(k * tokens_, tokens_)));
        in.valid_tokens += loader_.ValidTokens(step, rank, k);
      }
    }
    return all;
  }

 private:
  const BatchLoader& loader_;
  int64_t micro_batches_;
  int64_t tokens_;
  std::vector<std::vector<int32_t>> inputs_, targets_;  // By rank.
};

absl::StatusOr<BatchLoader> MakeLoader(const Job& job, TokenSource source, int64_t global_batch, bool evaluation) {
  const int64_t samples = SampleCount(source.size(), job.batch.sequence_length);
  SHALE_RETURN_IF_ERROR(source.CheckLength(job.batch.sequence_length));
  const bool shuffled = !evaluation && job.data.order == DataOrder::kShuffled;
  const SampleOrder order(shuffled ? SampleOrderKind::kShuffled : SampleOrderKind::kSequential, job.data.seed, samples);
  return BatchLoader::Create(
      std::move(source), order,
      {.micro_batch = job.batch.micro_batch,
       .sequence_length = job.batch.sequence_length,
       .ranks = job.sharding.ranks,
       .global_batch = global_batch,
       .targets = std::holds_alternative<MlpConfig>(job.model) ? TargetPositions::kLast : TargetPositions::kEvery});
}

// 0 where the system does not tell.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Optimizer steps of the run; the last one of a run in epochs may be short.
int64_t TotalSteps(const Job& job, int64_t samples_per_epoch) {
  if (job.schedule.steps > 0) return job.schedule.steps;
  const double samples = job.schedule.epochs * static_cast<double>(samples_per_epoch);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(samples / static_cast<double>(job.batch.global_batch))));
}

// The job's names for curves and scaling rules are those of the schedule, in its order.
static_assert(static_cast<int>(CurveShape::kWarmupStableDecay) ==
              static_cast<int>(LearningRateShape::kWarmupStableDecay));
static_assert(static_cast<int>(ScalingRule::kSquareRoot) == static_cast<int>(LearningRateScaling::kSquareRoot));

LearningRateOptions LearningRateFor(const Job& job, int64_t total_steps) {
  const LearningRateConfig& c = job.schedule;
  LearningRateOptions options;
  options.shape = static_cast<LearningRateShape>(c.shape);
  options.peak = job.optimizer.learning_rate;
  options.steps = total_steps;
  if (c.warmup_steps > 0) {
    options.warmup = c.warmup_steps;
  } else if (c.warmup_samples > 0) {
    options.warmup = c.warmup_samples;
    options.warmup_unit = WarmupUnit::kSamples;
  } else if (c.warmup_tokens > 0) {
    options.warmup = c.warmup_tokens;
    options.warmup_unit = WarmupUnit::kTokens;
  }
  options.final_fraction = c.final_fraction;
  options.decay_fraction = c.decay_fraction;
  options.scaling = static_cast<LearningRateScaling>(job.optimizer.scaling);
  options.base_batch = job.optimizer.base_batch;
  options.global_batch = job.batch.global_batch;
  options.sequence_length = job.batch.sequence_length;
  return options;
}

}  // namespace

class Trainer::Impl {
 public:
  absl::Status Create(Job job, const TrainerOptions& options) {
    job_ = std::move(job);
    options_ = options;
    SHALE_RETURN_IF_ERROR(OpenData());
    SHALE_RETURN_IF_ERROR(ValidateJob(job_));
    job_.runtime.threads_per_rank = ThreadsPerRank(job_);
    SHALE_ASSIGN_OR_RETURN(
        plan_, PlanJob(job_, *CreateOps(job_.runtime.ops, static_cast<int>(job_.runtime.threads_per_rank))));
    job_.sharding.schedule = plan_.options.schedule;
    batch_ = std::make_unique<HostBatch>(*loader_, plan_.options.micro_batches);
    overhead_bytes_ = ResidentBytes();
    SHALE_ASSIGN_OR_RETURN(world_, World::Create({.ranks = static_cast<int>(job_.sharding.ranks),
                                                  .threads_per_rank = static_cast<int>(job_.runtime.threads_per_rank),
                                                  .ops = job_.runtime.ops,
                                                  .synchronous = job_.runtime.synchronous},
                                                 plan_.arena_bytes));
    const ExecutorOptions executor{.synchronous = job_.runtime.synchronous};
    SHALE_ASSIGN_OR_RETURN(train_,
                           WorldProgram::Create(*world_, plan_.train.step.program, plan_.train.memory, executor));
    SHALE_ASSIGN_OR_RETURN(
        evaluate_, WorldProgram::Create(*world_, plan_.evaluate.step.program, plan_.evaluate.memory, executor));
    store_ = std::make_unique<ParameterStore>(plan_.train.graph, plan_.train.step.state, plan_.train.memory,
                                              world_->ranks());
    SHALE_RETURN_IF_ERROR(store_->Initialize(job_.runtime.seed));
    flops_per_token_ = ModelFlopsPerToken(job_, plan_.train.graph);
    return absl::OkStatus();
  }

  absl::StatusOr<StepReport> Step() {
    if (failed_) return absl::FailedPreconditionError("an earlier step failed; this trainer cannot go on");
    if (done()) return absl::FailedPreconditionError("the run is over: no step is left, or a stop was requested");
    const auto start = std::chrono::steady_clock::now();
    const double learning_rate = learning_rate_->At(steps_);
    SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs, batch_->Fill(NextSamples()));
    for (StepInputs& in : inputs) {
      in.hyper[kHyperLearningRate] = static_cast<float>(learning_rate);
      in.hyper[kHyperMaxNorm] = static_cast<float>(job_.optimizer.max_gradient_norm);
    }
    if (absl::Status status = train_->Run(inputs); !status.ok()) {
      failed_ = true;
      return status;
    }
    const StepOutputs& out = train_->outputs(0);
    const bool finite = out.totals[kTotalNonFinite] == 0;
    if (!finite && job_.optimizer.non_finite == NonFinite::kStop) {
      failed_ = true;
      return absl::DataLossError(
          absl::StrCat("step ", steps_ + 1, ": the loss or the gradient is not finite (on ",
                       out.totals[kTotalNonFinite], " of ", job_.sharding.ranks,
                       " ranks); the update was not applied. Lower optimizer.learning_rate, or set "
                       "optimizer.non_finite: SKIP to leave out such steps"));
    }
    position_ += NextSamples().count;
    ++steps_;
    tokens_ += out.global_tokens;

    StepReport report;
    report.step = steps_;
    report.tokens = tokens_;
    report.step_tokens = out.global_tokens;
    report.learning_rate = learning_rate;
    report.loss = out.global_tokens > 0 ? out.totals[kTotalLoss] / static_cast<double>(out.global_tokens) : 0;
    report.gradient_norm = std::sqrt(out.totals[kTotalSquaredNorm]);
    report.updated = finite && out.global_tokens > 0;
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report.tokens_per_second = static_cast<double>(out.global_tokens) / report.seconds;
    if (options_.peak_flops > 0) {
      report.mfu = report.tokens_per_second * flops_per_token_ /
                   (options_.peak_flops * static_cast<double>(job_.sharding.ranks));
    }
    report.peak_bytes_planned = plan_.arena_bytes;
    report.peak_bytes_measured = world_->measured_peak_bytes();
    if (!finite) report.loss = report.gradient_norm = std::nan("");
    return report;
  }

  absl::StatusOr<EvaluationReport> Evaluate(int64_t batches) {
    if (evaluation_loader_ == nullptr) {
      return absl::FailedPreconditionError(
          "the job has no evaluation data: set data.evaluation_path or data.evaluation_fraction");
    }
    HostBatch batch(*evaluation_loader_, 1);
    const int64_t per_run = job_.batch.micro_batch * job_.sharding.ranks;
    EvaluationReport report;
    report.step = steps_;
    double sum = 0;
    for (int64_t i = 0; i < batches; ++i) {
      const int64_t begin = i * per_run;
      const int64_t count = std::min(per_run, evaluation_loader_->samples_per_epoch() - begin);
      if (count <= 0) break;
      SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs, batch.Fill({begin, count}));
      if (absl::Status status = evaluate_->Run(inputs); !status.ok()) {
        failed_ = true;
        return status;
      }
      sum += evaluate_->outputs(0).totals[kTotalLoss];
      report.tokens += evaluate_->outputs(0).global_tokens;
    }
    report.loss = report.tokens > 0 ? sum / static_cast<double>(report.tokens) : 0;
    return report;
  }

  absl::Status SaveWeights(const std::string& path) const {
    std::vector<SafetensorsWriter::Entry> entries;
    for (const Parameter& parameter : store_->parameters()) {
      entries.push_back({parameter.name, SafetensorsDType::kF32, parameter.shape});
    }
    SHALE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path, entries, {{"step", absl::StrCat(steps_)}}));
    std::vector<float> values;
    for (size_t id = 0; id < store_->parameters().size(); ++id) {
      const int64_t elements = store_->parameters()[id].elements();
      for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
        values.resize(std::min(kChunkElements, elements - begin));
        SHALE_RETURN_IF_ERROR(store_->Read(static_cast<ParameterId>(id), begin, absl::MakeSpan(values)));
        SHALE_RETURN_IF_ERROR(writer->AppendFloat32(store_->parameters()[id].name, values));
      }
    }
    return writer->Finish();
  }

  bool done() const { return stop_.load(std::memory_order_relaxed) || steps_ >= total_steps_; }

  static constexpr int64_t kChunkElements = 1 << 20;

  Job job_;
  JobPlan plan_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<BatchLoader> evaluation_loader_;
  int64_t total_steps_ = 0, steps_ = 0;
  int64_t overhead_bytes_ = 0;
  std::atomic<bool> stop_ = false;

 private:
  absl::Status OpenData() {
    SHALE_ASSIGN_OR_RETURN(TokenSource source, TokenSource::Open(job_.data.path, Format()));
    job_.data.format = source.is_text() ? DataFormat::kText : DataFormat::kLlmc;
    std::visit([&](auto& model) { if (model.vocabulary == 0) model.vocabulary = source.vocabulary(); }, job_.model);
    SHALE_RETURN_IF_ERROR(source.CheckVocabulary(Vocabulary(job_.model)));
    std::unique_ptr<TokenSource> evaluation;
    if (!job_.data.evaluation_path.empty()) {
      SHALE_ASSIGN_OR_RETURN(TokenSource opened, TokenSource::Open(job_.data.evaluation_path, Format()));
      SHALE_RETURN_IF_ERROR(opened.CheckVocabulary(Vocabulary(job_.model)));
      evaluation = std::make_unique<TokenSource>(std::move(opened));
    } else if (job_.data.evaluation_fraction > 0) {
      SHALE_ASSIGN_OR_RETURN(TokenSplit split,
                             HoldOutEnd(source, job_.data.evaluation_fraction, job_.batch.sequence_length));
      source = split.training;
      evaluation = std::make_unique<TokenSource>(split.evaluation);
    }
    SHALE_ASSIGN_OR_RETURN(BatchLoader loader, MakeLoader(job_, source, job_.batch.global_batch, false));
    loader_ = std::make_unique<BatchLoader>(std::move(loader));
    if (evaluation != nullptr) {
      SHALE_ASSIGN_OR_RETURN(BatchLoader held_out, MakeLoader(job_, *evaluation,
                                                              job_.batch.micro_batch * job_.sharding.ranks, true));
      evaluation_loader_ = std::make_unique<BatchLoader>(std::move(held_out));
    }
    total_steps_ = TotalSteps(job_, loader_->samples_per_epoch());
    SHALE_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                           LearningRateSchedule::Create(LearningRateFor(job_, total_steps_)));
    learning_rate_ = std::make_unique<LearningRateSchedule>(schedule);
    return absl::OkStatus();
  }

  TokenFormat Format() const {
    switch (job_.data.format) {
      case DataFormat::kText: return TokenFormat::kText;
      case DataFormat::kLlmc: return TokenFormat::kLlmc;
      case DataFormat::kByContent: break;
    }
    return TokenFormat::kByContent;
  }

  // A run in epochs ends with what is left; a run in steps always takes whole batches, across epochs.
  StepSamples NextSamples() const {
    int64_t count = job_.batch.global_batch;
    if (job_.schedule.steps == 0) {
      const auto all = static_cast<int64_t>(std::llround(job_.schedule.epochs *
                                                         static_cast<double>(loader_->samples_per_epoch())));
      count = std::min(count, std::max<int64_t>(0, all - position_));
    }
    return {position_, count};
  }

  TrainerOptions options_;
  std::unique_ptr<World> world_;
  std::unique_ptr<WorldProgram> train_, evaluate_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<HostBatch> batch_;
  std::unique_ptr<LearningRateSchedule> learning_rate_;
  double flops_per_token_ = 0;
  int64_t position_ = 0;  // Samples taken so far, over all epochs.
  int64_t tokens_ = 0;
  bool failed_ = false;
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Job& job, const TrainerOptions& options) {
  auto impl = std::make_unique<Impl>();
  SHALE_RETURN_IF_ERROR(impl->Create(job, options));
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

const Job& Trainer::job() const { return impl_->job_; }
const JobPlan& Trainer::plan() const { return impl_->plan_; }
int64_t Trainer::overhead_bytes() const { return impl_->overhead_bytes_; }
int64_t Trainer::total_steps() const { return impl_->total_steps_; }
int64_t Trainer::steps_done() const { return impl_->steps_; }
bool Trainer::done() const { return impl_->done(); }
absl::StatusOr<StepReport> Trainer::Step() { return impl_->Step(); }
absl::StatusOr<EvaluationReport> Trainer::Evaluate(int64_t batches) { return impl_->Evaluate(batches); }
absl::Status Trainer::Run(const TrainCallbacks& callbacks) {
  const TelemetryConfig& telemetry = job().telemetry;
  while (!done()) {
    SHALE_ASSIGN_OR_RETURN(const StepReport report, Step());
    if (callbacks.on_step) SHALE_RETURN_IF_ERROR(callbacks.on_step(report));
    const bool last = report.step == total_steps();
    const bool due = last || (telemetry.evaluate_every > 0 && report.step % telemetry.evaluate_every == 0);
    if (!due || !has_evaluation_data() || (done() && !last)) continue;
    SHALE_ASSIGN_OR_RETURN(const EvaluationReport evaluation, Evaluate(telemetry.evaluation_batches));
    if (callbacks.on_evaluation) SHALE_RETURN_IF_ERROR(callbacks.on_evaluation(evaluation));
  }
  return absl::OkStatus();
}

bool Trainer::has_evaluation_data() const { return impl_->evaluation_loader_ != nullptr; }
void Trainer::RequestStop() { impl_->stop_.store(true, std::memory_order_relaxed); }
absl::Status Trainer::SaveWeights(const std::string& path) const { return impl_->SaveWeights(path); }
const std::vector<Parameter>& Trainer::parameters() const { return impl_->store_->parameters(); }

absl::Status Trainer::ReadParameter(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(ParameterId id, impl_->store_->FindWhole(name, std::ssize(values)));
  return impl_->store_->Read(id, 0, values);
}

absl::Status Trainer::WriteParameter(absl::string_view name, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(ParameterId id, impl_->store_->FindWhole(name, std::ssize(values)));
  return impl_->store_->Write(id, 0, values);
}

absl::Status Trainer::ReadGradient(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(ParameterId id, impl_->store_->FindWhole(name, std::ssize(values)));
  return impl_->store_->ReadGradient(id, 0, values);
}

}  // namespace shale
