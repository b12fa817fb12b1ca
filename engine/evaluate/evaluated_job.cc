#include "engine/evaluate/evaluated_job.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/generate/weights_only.h"
#include "engine/io/file.h"
#include "kernels/check.h"

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

}  // namespace shale
