#include "engine/train/job_data.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/config/parse.h"
#include "engine/hugging_face/tokenizer_digest.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

absl::StatusOr<BatchLoader> MakeLoader(const Job& job, TokenSource source, int64_t global_batch, bool evaluation) {
  const int64_t samples = SampleCount(source.size(), job.batch.sequence_length);
  SHALE_RETURN_IF_ERROR(source.CheckLength(job.batch.sequence_length));
  const SampleOrder order(evaluation ? DataOrder::kSequential : job.data.order, job.data.seed, samples);
  return BatchLoader::Create(std::move(source), order,
                             {.micro_batch = job.batch.micro_batch,
                              .sequence_length = job.batch.sequence_length,
                              .ranks = job.sharding.ranks,
                              .global_batch = global_batch,
                              .targets = LastTargetOnly(job.model) ? TargetPositions::kLast : TargetPositions::kEvery});
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobData>> JobData::Open(const Job& job, const std::string& tokenizer_folder) {
  SHALE_RETURN_IF_ERROR(ValidateJob(job));  // A job that was not parsed may have sizes of 0, which are divisors here.
  auto data = absl::WrapUnique(new JobData);
  SHALE_RETURN_IF_ERROR(data->OpenFiles(job));
  if (!tokenizer_folder.empty()) {
    SHALE_ASSIGN_OR_RETURN(const std::string digest, TokenizerDigest(tokenizer_folder));
    if (!digest.empty()) absl::StrAppend(&data->saved_.tokenizer, "; ", digest);
  }
  const int64_t samples = data->training_->samples_per_epoch();
  data->global_batch_ = job.batch.global_batch;
  if (job.lr_schedule.steps > 0) {
    data->total_steps_ = job.lr_schedule.steps;
  } else {
    const double all = job.lr_schedule.epochs * static_cast<double>(samples);
    data->total_samples_ = static_cast<int64_t>(std::llround(all));
    data->total_steps_ = std::max<int64_t>(1, data->StepsFor(data->total_samples_));
  }
  data->saved_.samples_per_epoch = samples;
  data->saved_.sequence_length = job.batch.sequence_length;
  data->saved_.shuffled = job.data.order == DataOrder::kShuffled;
  data->saved_.seed = job.data.seed;
  return data;
}

absl::Status JobData::OpenFiles(Job job) {
  SHALE_ASSIGN_OR_RETURN(TokenSource source, TokenSource::Open(job.data.path, job.data.format));
  facts_ = DataFactsOf(source);
  ApplyDataFacts(facts_, job);
  saved_.tokenizer = source.tokenizer();
  SHALE_RETURN_IF_ERROR(source.CheckVocabulary(Vocabulary(job.model)));
  std::unique_ptr<TokenSource> held_out;
  if (!job.data.evaluation_path.empty()) {
    SHALE_ASSIGN_OR_RETURN(TokenSource opened, TokenSource::Open(job.data.evaluation_path, job.data.format));
    SHALE_RETURN_IF_ERROR(opened.CheckVocabulary(Vocabulary(job.model)));
    if (opened.tokenizer() != source.tokenizer()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.evaluation_path: the tokens of ", job.data.evaluation_path, " are of \"", opened.tokenizer(),
          "\", those of data.path of \"", source.tokenizer(), "\"; evaluation data must have the same tokenizer"));
    }
    held_out = std::make_unique<TokenSource>(std::move(opened));
  } else if (job.data.evaluation_fraction > 0) {
    SHALE_ASSIGN_OR_RETURN(TokenSplit split,
                           HoldOutEnd(source, job.data.evaluation_fraction, job.batch.sequence_length));
    source = split.training;
    held_out = std::make_unique<TokenSource>(split.evaluation);
  }
  SHALE_ASSIGN_OR_RETURN(BatchLoader training, MakeLoader(job, source, job.batch.global_batch, false));
  training_ = std::make_unique<BatchLoader>(std::move(training));
  if (held_out == nullptr) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(BatchLoader evaluation,
                         MakeLoader(job, *held_out, job.batch.micro_batch * job.sharding.ranks, true));
  evaluation_ = std::make_unique<BatchLoader>(std::move(evaluation));
  return absl::OkStatus();
}

int64_t JobData::StepsFor(int64_t samples) const { return CeilDivide(samples, global_batch_); }

void JobData::GoOnAfter(int64_t step, int64_t samples) {
  if (total_samples_ >= 0) total_steps_ = step + StepsFor(std::max<int64_t>(0, total_samples_ - samples));
}

StepSamples JobData::SamplesAt(int64_t position) const {
  if (total_samples_ < 0) return {position, global_batch_};
  return {position, std::clamp<int64_t>(total_samples_ - position, 0, global_batch_)};
}

}  // namespace shale
