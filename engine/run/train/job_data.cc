#include "engine/run/train/job_data.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/files/data/sample_parts.h"
#include "engine/files/data/sample_sources.h"
#include "engine/files/hugging_face/folder_files.h"
#include "engine/strings/utf8.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

enum class Use { kTraining, kEvaluation };

// Returns how many samples the ranks evaluate at a time.
int64_t EvaluationBatch(int64_t micro_batch, int64_t ranks) { return micro_batch * ranks; }

// Makes a loader of the job's training or evaluation data.
absl::StatusOr<std::unique_ptr<BatchLoader>> MakeLoader(const Job& job, std::shared_ptr<DataSource> source, Use use) {
  const bool training = use == Use::kTraining;
  const int64_t samples = source->description().samples;
  // Only what has an end is shuffled here. A mixture shuffles its sources itself.
  const SampleOrder order(training && samples != kEndlessSamples ? job.data.order : DataOrder::kSequential,
                          job.data.seed, samples);
  const int64_t evaluated = EvaluationBatch(job.batch.micro_batch, job.sharding.ranks);
  SHALE_ASSIGN_OR_RETURN(BatchLoader loader,
                         BatchLoader::Create(std::move(source), order,
                                             {.micro_batch = job.batch.micro_batch,
                                              .sequence_length = job.batch.sequence_length,
                                              .ranks = job.sharding.ranks,
                                              .global_batch = training ? job.batch.global_batch : evaluated}));
  return std::make_unique<BatchLoader>(std::move(loader));
}

// Returns the mark of documents that the job gives, or that the format of the files has.
DocumentMark MarkOf(const TokenSource& source, const DataConfig& data) {
  DocumentMark mark = {.end_token = data.document_end_token, .begin_token = data.document_begin_token};
  if (!mark.given()) mark.begin_token = source.document_begin_token();
  return mark;
}

// Returns what distinguishes samples of documents from others of the same tokens, for checkpoints.
std::string NameOfPacking(const TokenSource& source, const DataConfig& data) {
  const DocumentMark mark = MarkOf(source, data);
  return absl::StrCat("; ", data.packing == Packing::kPack ? "PACK" : "PAD", ", ",
                      mark.given() || !source.knows_documents() ? mark.Describe() : "documents are those of the data",
                      data.long_documents == LongDocuments::kTruncate ? ", long ones are truncated"
                      : data.long_documents == LongDocuments::kDrop   ? ", long ones are left out"
                                                                      : "",
                      source.has_counts() ? ", parts without targets that count are left out" : "");
}

// Makes the samples of `source`, whose files are at `path`.
absl::StatusOr<std::shared_ptr<DataSource>> SamplesOf(const TokenSource& source, const Job& job,
                                                      const std::string& path, const TextProgress& progress) {
  if (job.data.packing != Packing::kCut) {
    SHALE_ASSIGN_OR_RETURN(std::shared_ptr<DocumentSamples> samples,
                           DocumentSamples::Create(source, job.data.packing, MarkOf(source, job.data),
                                                   job.batch.sequence_length, job.data.long_documents));
    if (progress.packed != nullptr) progress.packed(path, samples->report());
    return samples;
  }
  SHALE_RETURN_IF_ERROR(source.CheckLength(job.batch.sequence_length));
  return std::make_shared<TokenSamples>(source, job.batch.sequence_length);
}

// Returns what checkpoints record of the tokens at `path`.
absl::StatusOr<SavedSource> SourceOf(const TokenSource& source, const std::string& path, const Job& job) {
  SavedSource saved = {.path = path, .tokens = source.size(), .digest = source.TokensDigest()};
  if (job.data.packing != Packing::kCut) {
    SHALE_ASSIGN_OR_RETURN(saved.documents, source.DocumentsDigest());
  }
  return saved;
}

// Opens data that goes with that of data.path. `field` is where the job names it.
absl::StatusOr<TokenSource> OpenBeside(const TokenSource& first, const Job& job, absl::string_view field,
                                       const std::string& path, const TextProgress& progress) {
  SHALE_ASSIGN_OR_RETURN(TokenSource opened, OpenJobTokens(job, field, path, progress));
  SHALE_RETURN_IF_ERROR(opened.CheckVocabulary(Vocabulary(job.model)));
  if (opened.tokenizer() == first.tokenizer()) return opened;
  return absl::InvalidArgumentError(absl::StrCat(field, ": the tokens of ", path, " are of \"", opened.tokenizer(),
                                                 "\", those of data.path of \"", first.tokenizer(),
                                                 "\"; data that is used together must have the same tokenizer"));
}

// Mixes the samples of data.mix into those of data.path.
absl::StatusOr<std::shared_ptr<MixedSamples>> Mix(const TokenSource& source, std::shared_ptr<DataSource> samples,
                                                  const Job& job, const TextProgress& progress,
                                                  std::vector<SavedSource>* sources) {
  std::vector<MixedPart> parts = {{.source = std::move(samples), .share = kMixWindow}};
  for (const MixedData& mixed : job.data.mix) {
    SHALE_ASSIGN_OR_RETURN(const TokenSource other, OpenBeside(source, job, "data.mix", mixed.path, progress));
    SHALE_ASSIGN_OR_RETURN(sources->emplace_back(), SourceOf(other, mixed.path, job));
    SHALE_ASSIGN_OR_RETURN(std::shared_ptr<DataSource> others, SamplesOf(other, job, mixed.path, progress));
    parts.push_back({.source = std::move(others), .share = mixed.share});
    parts[0].share -= mixed.share;
  }
  return std::make_shared<MixedSamples>(source.tokenizer(), std::move(parts), job.data.order, job.data.seed);
}

absl::Status CheckOneKind(const Job& job, const JobData::Own& own) {
  if (own.training == nullptr && own.evaluation != nullptr) {
    return absl::InvalidArgumentError("the program gives evaluation_data and no data; give both to the trainer");
  }
  if (own.training == nullptr && job.data.path.empty()) {
    return absl::InvalidArgumentError(
        "data.path: missing; give a text file, a token file, or a folder of such files (a program may instead give "
        "the trainer data of its own)");
  }
  if (own.training != nullptr && !job.data.path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data.path: found \"", job.data.path,
                                                   "\", and the program gives the trainer data too; keep one of them"));
  }
  return absl::OkStatus();
}

// Begins the message of an error in the description of a source.
template <class... Args>
absl::Status Refuse(absl::string_view name, const Args&... what) {
  return absl::InvalidArgumentError(absl::StrCat("data \"", name, "\": ", what...));
}

absl::Status CheckDescription(const DataDescription& data, const Job& job) {
  const bool fit_name = !data.name.empty() && data.name.size() <= 200 && IsLineOfText(data.name);
  if (!fit_name) return absl::InvalidArgumentError("the name of the data must be one line of 1 to 200 bytes of text");
  if (data.samples < 1 || data.samples > kEndlessSamples) {
    return Refuse(data.name, "it has ", data.samples, " samples; wanted 1 to 2^60 (kEndlessSamples)");
  }
  constexpr int64_t kMost = int64_t{1} << 24;
  for (const auto& [count, what] : {std::pair(data.features, "features"), {data.target_values, "target values"}}) {
    if (count < 0 || count > kMost) return Refuse(data.name, "a position has ", count, " ", what, "; wanted 0 to 2^24");
  }
  if (data.sequence_length != job.batch.sequence_length) {
    return Refuse(data.name, "its samples have ", data.sequence_length, " positions, batch.sequence_length is ",
                  job.batch.sequence_length, "; make them equal");
  }
  return absl::OkStatus();
}

// Checks the description of training data that the program gives.
absl::Status CheckTraining(const DataSource& source, const Job& job) {
  const DataDescription& data = source.description();
  SHALE_RETURN_IF_ERROR(CheckDescription(data, job));
  if (job.data.order == DataOrder::kShuffled && (source.sequential() || data.samples == kEndlessSamples)) {
    return Refuse(data.name, source.sequential() ? "it can only be read in order" : "it has no end",
                  ", so it cannot be shuffled; set data.order=SEQUENTIAL");
  }
  return absl::OkStatus();
}

// Prepares a loader for a model. Returns InvalidArgument if the data does not have what the model reads.
absl::Status Fit(const DataNeeds& needs, BatchLoader& loader) {
  const DataDescription& data = loader.source().description();
  absl::Status fits;
  ForEachPart([&](const auto& part) {
    const int64_t given = part.elements(data), wanted = needs.ElementsOf(part.item);
    if (given == wanted || part.is_token) return;
    if (!part.if_unread.empty()) return fits.Update(Refuse(data.name, wanted == 0 ? part.if_unread : part.if_lacking));
    fits.Update(Refuse(data.name, "a position has ", given, " ", part.element, "s, and the model reads ", wanted,
                       given == 0 || wanted == 0 ? " (0: tokens)" : ""));
  });
  SHALE_RETURN_IF_ERROR(fits);
  const int64_t limit = needs.input_ids > 0 ? needs.input_ids : needs.target_ids;
  if (limit > 0 && data.vocabulary > limit) {
    return Refuse(data.name, "its vocabulary is ", data.vocabulary, ", that of the model is ", limit);
  }
  loader.Expect(needs.last_target_only ? TargetPositions::kLast : TargetPositions::kEvery, needs.input_ids,
                needs.target_ids);
  return absl::OkStatus();
}

std::shared_ptr<DataSource> Borrowed(DataSource& source) {
  return std::shared_ptr<DataSource>(&source, [](DataSource*) {});
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobData>> JobData::Open(const Job& job, const std::string& tokenizer_folder,
                                                       const Own& own, const TextProgress& progress) {
  SHALE_RETURN_IF_ERROR(ValidateJob(job));  // A job that was not parsed may have sizes of 0, which are divisors here.
  auto data = absl::WrapUnique(new JobData);
  SHALE_RETURN_IF_ERROR(CheckOneKind(job, own));
  SHALE_RETURN_IF_ERROR(own.training != nullptr ? data->OpenOwn(job, own) : data->OpenFiles(job, progress));
  if (!tokenizer_folder.empty()) {
    SHALE_ASSIGN_OR_RETURN(data->digest_, TokenizerDigest(tokenizer_folder));
    data->saved_.tokenizer = data->Recorded(data->saved_.tokenizer);
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

absl::Status JobData::OpenFiles(Job job, const TextProgress& progress) {
  SHALE_ASSIGN_OR_RETURN(TokenSource source, OpenJobTokens(job, "data.path", job.data.path, progress));
  facts_ = DataFactsOf(source);
  // The format of text that became tokens is that of the job.
  if (source.from_text()) facts_.format = DataFormat::kByContent;
  ApplyDataFacts(facts_, job);
  saved_.tokenizer = source.tokenizer();
  if (job.data.packing != Packing::kCut) saved_.tokenizer += NameOfPacking(source, job.data);
  SHALE_RETURN_IF_ERROR(source.CheckVocabulary(Vocabulary(job.model)));
  SHALE_ASSIGN_OR_RETURN(saved_.sources.emplace_back(), SourceOf(source, job.data.path, job));
  struct HeldOut {
    std::string name, path;
    TokenSource tokens;
  };
  std::vector<HeldOut> held_out;
  if (!job.data.evaluation_path.empty()) {
    SHALE_ASSIGN_OR_RETURN(TokenSource opened,
                           OpenBeside(source, job, "data.evaluation_path", job.data.evaluation_path, progress));
    held_out.push_back({"", job.data.evaluation_path, std::move(opened)});
  } else if (job.data.evaluation_fraction > 0) {
    SHALE_ASSIGN_OR_RETURN(TokenSplit split,
                           HoldOutEnd(source, job.data.evaluation_fraction,
                                      job.data.packing == Packing::kCut ? job.batch.sequence_length : 1));
    source = split.training;
    held_out.push_back({job.data.evaluation_sources.empty() ? "" : kHeldOutSource,
                        absl::StrCat(job.data.path, " (held out)"), split.evaluation});
  }
  for (const EvaluationSource& named : job.data.evaluation_sources) {
    SHALE_ASSIGN_OR_RETURN(TokenSource opened,
                           OpenBeside(source, job, "data.evaluation_sources", named.path, progress));
    held_out.push_back({named.name, named.path, std::move(opened)});
  }
  SHALE_ASSIGN_OR_RETURN(std::shared_ptr<DataSource> samples, SamplesOf(source, job, job.data.path, progress));
  if (!job.data.mix.empty()) {
    SHALE_ASSIGN_OR_RETURN(const std::shared_ptr<MixedSamples> mixed,
                           Mix(source, std::move(samples), job, progress, &saved_.sources));
    absl::StrAppend(&saved_.tokenizer, "; mix of ", mixed->Describe());
    samples = mixed;
  }
  SHALE_ASSIGN_OR_RETURN(training_, MakeLoader(job, std::move(samples), Use::kTraining));
  for (const HeldOut& part : held_out) {
    SHALE_ASSIGN_OR_RETURN(samples, SamplesOf(part.tokens, job, part.path, progress));
    SHALE_RETURN_IF_ERROR(AddEvaluation(job, part.name, std::move(samples)));
  }
  return absl::OkStatus();
}

absl::Status JobData::AddEvaluation(const Job& job, const std::string& name, std::shared_ptr<DataSource> source) {
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<BatchLoader> loader, MakeLoader(job, std::move(source), Use::kEvaluation));
  evaluations_.push_back({name, std::move(loader)});
  return absl::OkStatus();
}

std::string JobData::DescribeEvaluations(int64_t sequences) const {
  std::string text;
  for (const Evaluation& evaluation : evaluations_) {
    const DataDescription& data = evaluation.loader->source().description();
    absl::StrAppend(&text, text.empty() ? "" : "; ", evaluation.name, evaluation.name.empty() ? "" : ": ",
                    std::min(sequences, evaluation.loader->samples_per_epoch()), " of ", data.samples,
                    " sequences of \"", data.name, "\"");
  }
  return text;
}

absl::Status JobData::OpenOwn(const Job& job, const Own& own) {
  const DataDescription& data = own.training->description();
  SHALE_RETURN_IF_ERROR(CheckTraining(*own.training, job));
  if (job.lr_schedule.epochs > 0 && data.samples == kEndlessSamples) {
    return Refuse(data.name, "it has no end, so lr_schedule.epochs has no meaning; give lr_schedule.steps");
  }
  if (job.telemetry.evaluate_every > 0 && own.evaluation == nullptr) {
    return absl::InvalidArgumentError(
        "telemetry.evaluate_every: there is no evaluation data; give the trainer evaluation_data, or leave it out");
  }
  facts_.vocabulary = data.vocabulary;
  saved_.tokenizer = data.name;
  SHALE_ASSIGN_OR_RETURN(training_, MakeLoader(job, Borrowed(*own.training), Use::kTraining));
  if (own.evaluation == nullptr) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(CheckDescription(own.evaluation->description(), job));
  if (own.evaluation->sequential()) {
    return Refuse(own.evaluation->description().name,
                  "it can only be read once, in order; evaluation data must be readable at any position");
  }
  return AddEvaluation(job, "", Borrowed(*own.evaluation));
}

absl::Status JobData::FitTo(const DataNeeds& needs, int64_t micro_batch) {
  SHALE_RETURN_IF_ERROR(Fit(needs, *training_));
  training_->Divide(micro_batch, training_->shape().global_batch);
  for (Evaluation& evaluation : evaluations_) {
    BatchLoader& loader = *evaluation.loader;
    SHALE_RETURN_IF_ERROR(Fit(needs, loader));
    loader.Divide(micro_batch, EvaluationBatch(micro_batch, loader.shape().ranks));
  }
  return absl::OkStatus();
}

absl::Status JobData::Start(int64_t place, const std::string* state) const {
  SHALE_RETURN_IF_ERROR(training_->Start(place, state));
  for (const Evaluation& evaluation : evaluations_) {
    if (&evaluation.loader->source() == &training_->source()) continue;
    SHALE_RETURN_IF_ERROR(evaluation.loader->Start(0, nullptr));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BatchLoader>> JobData::OpenOther(const Job& job, const DataNeeds& needs,
                                                                DataSource& source) const {
  if (!job.data.path.empty()) {
    return absl::FailedPreconditionError(
        "this run reads the files of data.path, and its checkpoints resume with those alone; give the data to the "
        "trainer, without data.path, to change it");
  }
  if (total_samples_ >= 0) {
    return absl::FailedPreconditionError(
        "lr_schedule.epochs counts epochs of the data that the run began with; give lr_schedule.steps to change the "
        "data");
  }
  SHALE_RETURN_IF_ERROR(CheckTraining(source, job));
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<BatchLoader> loader, MakeLoader(job, Borrowed(source), Use::kTraining));
  SHALE_RETURN_IF_ERROR(Fit(needs, *loader));
  return loader;
}

void JobData::GoOnWith(std::unique_ptr<BatchLoader> loader, int64_t position) {
  training_ = std::move(loader);
  begin_ = position;
  saved_.tokenizer = Recorded(training_->source().description().name);
  saved_.samples_per_epoch = training_->samples_per_epoch();
  saved_.sources.clear();
}

std::string JobData::Recorded(const std::string& name) const {
  return digest_.empty() || absl::StartsWith(name, digest_) ? name : absl::StrCat(name, "; ", digest_);
}

SavedData JobData::SavedAt(int64_t position) const {
  SavedData saved = saved_;
  saved.source_state = training_->source().StateAt(position - begin_);
  saved.begin = begin_;
  return saved;
}

int64_t JobData::StepsFor(int64_t samples) const { return CeilDivide(samples, global_batch_); }

void JobData::GoOnAfter(int64_t step, int64_t samples, int64_t begin) {
  begin_ = begin;
  if (total_samples_ >= 0) total_steps_ = step + StepsFor(std::max<int64_t>(0, total_samples_ - (samples - begin)));
}

StepSamples JobData::SamplesAt(int64_t position) const {
  const int64_t place = position - begin_;
  if (total_samples_ < 0) return {place, global_batch_};
  return {place, std::clamp<int64_t>(total_samples_ - place, 0, global_batch_)};
}

absl::Status CheckSource(const DataSource& source, int processes, bool saves) {
  if (source.sequential() && processes > 1) {
    return absl::InvalidArgumentError(absl::StrCat("data \"", source.description().name,
                                                   "\": it can only be read in order, by one process; found ",
                                                   processes, " processes"));
  }
  if (!source.has_state() && saves) {
    return absl::InvalidArgumentError(
        absl::StrCat("data \"", source.description().name,
                     "\": callbacks save and restore are missing, which checkpoints need; give both, or no "
                     "folder for checkpoints"));
  }
  return absl::OkStatus();
}

}  // namespace shale
