#include "engine/run/evaluate/evaluator.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/compile/graph/graph.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/generate/weights_only.h"
#include "engine/run/train/batch_prefetcher.h"
#include "engine/run/train/job_data.h"
#include "engine/run/train/starting_state.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/documents/prepared_text.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

bool HasTokenizer(const std::string& folder) { return access(JoinPath(folder, "tokenizer.json").c_str(), F_OK) == 0; }

void SetData(const EvaluatorOptions& options, DataConfig& data) {
  data.order = DataOrder::kSequential;
  // A run that read files as JSON Lines although their names do not say so reads these files as such, too.
  if (data.format != DataFormat::kJsonLines) data.format = DataFormat::kByContent;
  data.for_evaluation = true;
  data.evaluation_path.clear();
  data.evaluation_fraction = 0;
  data.evaluation_sources.clear();
  data.mix.clear();
  data.target_weights = TargetWeights::kNone;
  if (options.packing) data.packing = *options.packing;
  if (data.packing == Packing::kCut) {
    data.document_end_token = data.document_begin_token = -1;
    data.long_documents = LongDocuments::kSplit;
  }
  if (options.loss_on) data.loss_on = *options.loss_on;
  if (!options.cache.empty()) data.cache = options.cache;
}

absl::StatusOr<Job> Finish(Job job, const EvaluatorOptions& options) {
  SetData(options, job.data);
  if (options.sequences > 0) job.batch.micro_batch = options.sequences;
  if (options.sequence_length > 0) job.batch.sequence_length = options.sequence_length;
  job.activation_checkpointing = {};  // There is no backward.
  job.memory.offload.clear();
  job.lr_schedule = {.steps = 1};
  job.telemetry.evaluate_every = 0;
  job.runtime.generate = false;
  job = WithWeightsOnly(std::move(job));
  job.memory.budget_bytes = options.budget_bytes;
  SHALE_RETURN_IF_ERROR(ValidateJob(job));
  return job;
}

// Counts the bytes of the text of tokens.
class TextBytes {
 public:
  // The tokens are those of `tokenizer`; without one, each token is a byte.
  explicit TextBytes(const std::optional<Tokenizer>& tokenizer) : tokenizer_(tokenizer) {}

  // Adds the targets of a sequence. A target that does not count ends a text.
  void Add(absl::Span<const int32_t> targets) {
    for (const int32_t target : targets) {
      if (target == kMaskedTarget) {
        Finish();
      } else if (!tokenizer_) {
        ++bytes_;
      } else {
        if (!stream_) stream_.emplace(*tokenizer_, /*skip_special=*/true);
        bytes_ += std::ssize(stream_->Push(target));
      }
    }
  }
  // Ends a text. Returns the bytes of all texts so far.
  int64_t Finish() {
    if (stream_) bytes_ += std::ssize(stream_->Finish());
    stream_.reset();
    return bytes_;
  }

 private:
  const std::optional<Tokenizer>& tokenizer_;
  std::optional<TokenStream> stream_;
  int64_t bytes_ = 0;
};

}  // namespace

absl::StatusOr<Job> EvaluatedJob(Job job, const std::string& run_folder, const EvaluatorOptions& options) {
  if (std::holds_alternative<CustomModel>(job.model)) {
    return absl::InvalidArgumentError("a program brought the model of this run, and only such a program can run it");
  }
  if (job.data.has_tokenizer() && HasTokenizer(RunHfPath(run_folder))) job.data.tokenizer = RunHfPath(run_folder);
  if (job.data.path.empty()) job.data.path = run_folder;  // The program gave the data.
  job.telemetry.run_folder = run_folder;
  return Finish(std::move(job), options);
}

absl::StatusOr<Job> EvaluatedJobOfFolder(const std::string& hf_folder, const EvaluatorOptions& options) {
  constexpr int64_t kLongest = 1024;
  SHALE_ASSIGN_OR_RETURN(
      Job job, ParseJobText("", "evaluation",
                            std::vector<std::string>{
                                absl::StrCat("model.hf_folder=", hf_folder), absl::StrCat("data.path=", hf_folder),
                                "data.packing=PACK", "batch.global_batch=1", "batch.sequence_length=1",
                                "sharding.strategy=DDP", "sharding.accumulation=NO_SYNC", "lr_schedule.steps=1"}));
  const auto* decoder = std::get_if<DecoderConfig>(&job.model);
  SHALE_CHECK(decoder != nullptr);
  job.batch.sequence_length = std::min(kLongest, decoder->max_positions);
  return Finish(std::move(job), options);
}

double DataEvaluation::loss() const { return tokens > 0 ? loss_sum / static_cast<double>(tokens) : 0; }
double DataEvaluation::perplexity() const { return std::exp(loss()); }
double DataEvaluation::bits_per_byte() const {
  return bytes > 0 ? loss_sum / std::log(2.0) / static_cast<double>(bytes) : 0;
}

class Evaluator::Impl {
 public:
  // `reads_bytes` says whether tokens are the bytes of text if the job has no tokenizer.
  Impl(const EvaluatorOptions& options, bool reads_bytes) : progress_(options.progress), reads_bytes_(reads_bytes) {}

  // Plans and allocates. The weights are not set yet.
  absl::Status Create(const Job& job, const BackendFactory& create_backend, const EvaluatorOptions& options) {
    WeightsUse use{.evaluation = true};
    if (options.answers > 0) {
      use.generation = GenerationSize{.sequences = options.answers, .positions = options.context};
    }
    SHALE_ASSIGN_OR_RETURN(weights_, WeightsOnly::Create(job, create_backend, use));
    const PlannedProgram& program = weights_->evaluation();
    SHALE_ASSIGN_OR_RETURN(evaluation_,
                           LocalProgram::Create(weights_->ranks(), program.step.program, program.memory, {}));
    if (use.generation) {
      SHALE_ASSIGN_OR_RETURN(
          sequences_, Sequences::Create(weights_->ranks(), weights_->generation(), PaddingToken(weights_->job()), {}));
    }
    if (!job.data.has_tokenizer()) return absl::OkStatus();
    SHALE_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(job.data.tokenizer));
    SHALE_ASSIGN_OR_RETURN(end_tokens_, EndTokens(job.data.tokenizer, *tokenizer_));
    chat_ = ChatTemplate::Load(job.data.tokenizer, job.data.date);
    return absl::OkStatus();
  }
  absl::Status Restore(const CheckpointReader& checkpoint, const std::string& base_folder) {
    return weights_->Restore(checkpoint, base_folder);
  }
  absl::Status ReadFolder() {
    LocalState state = weights_->state();
    return SetInitialWeights(weights_->job(), state);
  }

  absl::StatusOr<DataEvaluation> Evaluate(const std::string& path) {
    Job job = weights_->job();
    job.data.path = path;
    SHALE_ASSIGN_OR_RETURN(const bool is_text, IsText(path, job.data.files(true)));
    if (is_text && !tokenizer_ && !reads_bytes_) {
      return absl::InvalidArgumentError(
          absl::StrCat(path,
                       " is text, and the tokenizer of the model is not known, whose folder has no tokenizer.json; add "
                       "that, or give token files"));
    }
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<JobData> data, JobData::Open(job, "", {}, progress_));
    SHALE_RETURN_IF_ERROR(data->FitTo(NeedsOf(weights_->evaluation().graph), job.batch.micro_batch));
    SHALE_RETURN_IF_ERROR(data->Start(0, nullptr));
    const BatchLoader& loader = data->training();
    SampleBatch batch(loader, 1);
    TextBytes text(tokenizer_);
    DataEvaluation result;
    for (int64_t begin = 0, end = loader.samples_per_epoch(); begin < end; begin += job.batch.micro_batch) {
      SHALE_ASSIGN_OR_RETURN(const std::vector<StepInputs> inputs,
                             batch.Fill({begin, std::min(job.batch.micro_batch, end - begin)}));
      SHALE_RETURN_IF_ERROR(evaluation_->Run(inputs));
      const StepOutputs& out = evaluation_->outputs(0);
      result.loss_sum += out.totals[kTotalLoss];
      result.tokens += out.global_tokens;
      if (tokenizer_ || is_text) text.Add(inputs[0].Get<int32_t>(StepItem::kTargets));
    }
    result.bytes = text.Finish();
    return result;
  }

  absl::StatusOr<MatchReport> Match(const std::string& path, const MatchOptions& options,
                                    const std::function<absl::Status(const Answer&)>& take) {
    if (sequences_ == nullptr) return absl::FailedPreconditionError("no generation is planned (options.answers)");
    if (!tokenizer_) {
      return absl::InvalidArgumentError("completions need a tokenizer, and the model was trained without one");
    }
    const MatchText text = {*tokenizer_, chat_.ok() ? &*chat_ : nullptr, end_tokens_};
    return MatchCompletions(path, weights_->job().data, text, *sequences_, options, take);
  }

  const WeightsOnly& weights() const { return *weights_; }

 private:
  std::unique_ptr<WeightsOnly> weights_;
  std::unique_ptr<LocalProgram> evaluation_;
  std::unique_ptr<Sequences> sequences_;  // Null if nothing is generated.
  std::optional<Tokenizer> tokenizer_;
  std::vector<int32_t> end_tokens_;
  absl::StatusOr<ChatTemplate> chat_ = absl::NotFoundError("");  // Files without messages do not need it.
  const TextProgress progress_;
  const bool reads_bytes_;
};

Evaluator::Evaluator(std::unique_ptr<Impl> impl, int64_t step) : impl_(std::move(impl)), step_(step) {}
Evaluator::~Evaluator() = default;

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::FromRun(const std::string& run_folder, WhichCheckpoint which,
                                                              const BackendFactory& create_backend,
                                                              const EvaluatorOptions& options) {
  std::unique_ptr<Evaluator> evaluator;
  absl::Status created;
  const auto create = [&](const CheckpointReader& checkpoint) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(
        Job job, ParseRecordedJob(checkpoint.manifest().job, absl::StrCat("the job in ", checkpoint.folder())));
    const bool reads_bytes = job.data.format == DataFormat::kText && !job.data.has_tokenizer();
    SHALE_ASSIGN_OR_RETURN(job, EvaluatedJob(std::move(job), run_folder, options));
    auto impl = std::make_unique<Impl>(options, reads_bytes);
    SHALE_RETURN_IF_ERROR(impl->Create(job, create_backend, options));
    SHALE_RETURN_IF_ERROR(impl->Restore(checkpoint, options.base_folder));
    evaluator = absl::WrapUnique(new Evaluator(std::move(impl), checkpoint.manifest().step));
    return absl::OkStatus();
  };
  const std::string folder = RunCheckpointsPath(run_folder);
  SHALE_ASSIGN_OR_RETURN(NewestCheckpoint newest, UseCheckpoint(which, folder, [&](const CheckpointReader& checkpoint) {
                           created = create(checkpoint);
                           return absl::IsDataLoss(created) ? created : absl::OkStatus();
                         }));
  SHALE_RETURN_IF_ERROR(created);
  if (evaluator == nullptr) return NoCheckpointIn(folder);
  evaluator->passed_over_ = std::move(newest.passed_over);
  return evaluator;
}

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::FromFolder(const std::string& hf_folder,
                                                                 const BackendFactory& create_backend,
                                                                 const EvaluatorOptions& options) {
  SHALE_ASSIGN_OR_RETURN(const Job job, EvaluatedJobOfFolder(hf_folder, options));
  auto impl = std::make_unique<Impl>(options, /*reads_bytes=*/false);
  SHALE_RETURN_IF_ERROR(impl->Create(job, create_backend, options));
  SHALE_RETURN_IF_ERROR(impl->ReadFolder());
  return absl::WrapUnique(new Evaluator(std::move(impl), -1));
}

const Job& Evaluator::job() const { return impl_->weights().job(); }
int64_t Evaluator::planned_peak_bytes() const { return impl_->weights().planned_peak_bytes(); }
int64_t Evaluator::measured_peak_bytes() const { return impl_->weights().ranks().measured_peak_bytes(); }
absl::StatusOr<DataEvaluation> Evaluator::Evaluate(const std::string& path) { return impl_->Evaluate(path); }
absl::StatusOr<MatchReport> Evaluator::Match(const std::string& path, const MatchOptions& options,
                                             const std::function<absl::Status(const Answer&)>& take) {
  return impl_->Match(path, options, take);
}

}  // namespace shale
