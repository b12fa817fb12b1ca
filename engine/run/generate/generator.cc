#include "engine/api/generator.h"

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/store.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/generate/weights_only.h"
#include "kernels/check.h"

namespace shale {

class Generator::Impl {
 public:
  absl::Status Create(const CheckpointReader& checkpoint, const BackendFactory& create_backend,
                      const std::optional<CustomModel>& model, const GenerationSize& size,
                      const std::string& base_folder) {
    SHALE_ASSIGN_OR_RETURN(
        Job job, ParseRecordedJob(checkpoint.manifest().job, absl::StrCat("the job in ", checkpoint.folder())));
    if (model) SHALE_RETURN_IF_ERROR(SetModel(*model, job));
    // One sequence, unless `size` says otherwise.
    job.batch.micro_batch = 1;
    SHALE_ASSIGN_OR_RETURN(weights_, WeightsOnly::Create(WithWeightsOnly(job), create_backend, {.generation = size}));
    SHALE_ASSIGN_OR_RETURN(
        sequences_, Sequences::Create(weights_->ranks(), weights_->generation(), PaddingToken(weights_->job()), {}));
    next_ = std::make_unique<NextTokens>(*sequences_);
    // DataLoss makes FromRun try an older checkpoint.
    return weights_->Restore(checkpoint, base_folder);
  }

  const Job& job() const { return weights_->job(); }
  NextTokens& next() { return *next_; }
  const Sequences& sequences() const { return *sequences_; }
  int64_t planned_peak_bytes() const { return weights_->planned_peak_bytes(); }
  int64_t measured_peak_bytes() const { return weights_->ranks().measured_peak_bytes(); }
  bool is_text() const {
    const DataConfig& data = weights_->job().data;
    return data.format == DataFormat::kText && !data.has_tokenizer();
  }

 private:
  std::unique_ptr<WeightsOnly> weights_;
  std::unique_ptr<Sequences> sequences_;
  std::unique_ptr<NextTokens> next_;
};

Generator::Generator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Generator::~Generator() = default;

const Job& Generator::job() const { return impl_->job(); }
int64_t Generator::vocabulary() const { return impl_->sequences().vocabulary(); }
int64_t Generator::positions() const { return impl_->sequences().positions(); }
int64_t Generator::planned_peak_bytes() const { return impl_->planned_peak_bytes(); }
int64_t Generator::measured_peak_bytes() const { return impl_->measured_peak_bytes(); }
bool Generator::is_text() const { return impl_->is_text(); }

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const CheckpointReader& checkpoint,
                                                             const BackendFactory& create_backend,
                                                             const std::optional<CustomModel>& model,
                                                             const GenerationSize& size,
                                                             const std::string& base_folder) {
  auto impl = std::make_unique<Impl>();
  SHALE_RETURN_IF_ERROR(impl->Create(checkpoint, create_backend, model, size, base_folder));
  return absl::WrapUnique(new Generator(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::FromRun(const std::string& run_folder,
                                                              const BackendFactory& create_backend,
                                                              const std::optional<CustomModel>& model,
                                                              const GenerationSize& size, WhichCheckpoint which,
                                                              const std::string& base_folder) {
  std::unique_ptr<Generator> generator;
  const std::string folder = RunCheckpointsPath(run_folder);
  absl::Status created;
  const auto create = [&](const CheckpointReader& checkpoint) {
    absl::StatusOr<std::unique_ptr<Generator>> one = Create(checkpoint, create_backend, model, size, base_folder);
    created = one.status();
    if (one.ok()) generator = *std::move(one);
    return absl::IsDataLoss(created) ? created : absl::OkStatus();
  };
  SHALE_ASSIGN_OR_RETURN(NewestCheckpoint newest, UseCheckpoint(which, folder, create));
  SHALE_RETURN_IF_ERROR(created);
  if (generator == nullptr) return NoCheckpointIn(folder);
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
