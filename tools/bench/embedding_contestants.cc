#include "tools/bench/embedding_contestants.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/c/shale.h"
#include "engine/files/data/sample_sources.h"
#include "kernels/check.h"

namespace shale {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Sample i has inputs [i S, (i + 1) S) and targets one token later, as the samples of a file.
class MemoryTokens : public DataSource {
 public:
  MemoryTokens(std::vector<int32_t> tokens, int64_t sequence_length)
      : DataSource({.name = "tokens in memory",
                    .samples = (std::ssize(tokens) - 1) / sequence_length,
                    .sequence_length = sequence_length,
                    .vocabulary = 256}),
        tokens_(std::move(tokens)) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    const int64_t length = description().sequence_length;
    const auto begin = tokens_.begin() + sample * length;
    std::copy_n(begin, length, out.inputs.begin());
    std::copy_n(begin + 1, length, out.targets.begin());
    return absl::OkStatus();
  }

 private:
  const std::vector<int32_t> tokens_;
};

class CppContestant : public Contestant {
 public:
  CppContestant(std::unique_ptr<DataSource> data, std::unique_ptr<Trainer> trainer)
      : data_(std::move(data)), trainer_(std::move(trainer)) {}

  absl::StatusOr<TimedStep> Step() override {
    const double begin = Now();
    SHALE_ASSIGN_OR_RETURN(const StepReport report, trainer_->Step());
    return TimedStep{Now() - begin, report.seconds, report.loss};
  }
  absl::StatusOr<double> SmallCall(int64_t) override { return 0; }

 private:
  const std::unique_ptr<DataSource> data_;  // May be null. Outlives the trainer.
  const std::unique_ptr<Trainer> trainer_;
};

absl::StatusOr<std::unique_ptr<Contestant>> MakeCpp(const BenchJob& from, std::unique_ptr<DataSource> data) {
  SHALE_ASSIGN_OR_RETURN(Job job, LoadJob(from.path, from.overrides));
  SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, CreateBackend(job));
  SHALE_ASSIGN_OR_RETURN(auto trainer, Trainer::Create(job, {.backend = backend.get(), .data = data.get()}));
  return std::make_unique<CppContestant>(std::move(data), std::move(trainer));
}

absl::Status StatusOf(shale_code code, const shale_error& error) {
  return absl::Status(static_cast<absl::StatusCode>(code), error.message);
}

class CContestant : public Contestant {
 public:
  ~CContestant() override { shale_trainer_free(trainer_, nullptr); }

  absl::Status Start(const BenchJob& from) {
    std::vector<const char*> overrides;
    for (const std::string& each : from.overrides) overrides.push_back(each.c_str());
    shale_job job = 0;
    shale_code code = shale_job_load(from.path.c_str(), overrides.data(), overrides.size(), 0, &job, &error_);
    if (code == SHALE_OK) code = shale_trainer_create(job, nullptr, &trainer_, &error_);
    shale_job_free(job, nullptr);
    return StatusOf(code, error_);
  }
  absl::StatusOr<TimedStep> Step() override {
    const double begin = Now();
    shale_step_report report = SHALE_INIT(shale_step_report);
    const shale_code code = shale_trainer_step(trainer_, &report, &error_);
    const double end = Now();
    if (code != SHALE_OK) return StatusOf(code, error_);
    return TimedStep{end - begin, report.seconds, report.loss};
  }
  absl::StatusOr<double> SmallCall(int64_t count) override {
    shale_trainer_state state = SHALE_INIT(shale_trainer_state);
    const double begin = Now();
    for (int64_t i = 0; i < count; ++i) {
      const shale_code code = shale_trainer_get_state(trainer_, &state, &error_);
      if (code != SHALE_OK) return StatusOf(code, error_);
    }
    return (Now() - begin) / static_cast<double>(count);
  }

 private:
  shale_error error_ = SHALE_INIT(shale_error);
  shale_trainer trainer_ = 0;
};

absl::StatusOr<double> ReadAlone(DataSource& source, int64_t count) {
  const int64_t length = source.description().sequence_length;
  std::vector<int32_t> inputs(length), targets(length);
  const double begin = Now();
  for (int64_t i = 0; i < count; ++i) {
    // A stride that goes through all samples in no simple order, as a shuffled epoch does.
    SHALE_RETURN_IF_ERROR(source.Read(i * 7919 % source.description().samples,
                                      {.inputs = absl::MakeSpan(inputs), .targets = absl::MakeSpan(targets)}));
  }
  return (Now() - begin) / static_cast<double>(count);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Contestant>> StepInCpp(const BenchJob& job) { return MakeCpp(job, nullptr); }

absl::StatusOr<std::unique_ptr<Contestant>> StepOnMemory(const BenchJob& job, std::vector<int32_t> tokens) {
  SHALE_ASSIGN_OR_RETURN(const Job parsed, LoadJob(job.path, job.overrides));
  const int64_t length = parsed.batch.sequence_length;
  if (std::ssize(tokens) <= length) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", tokens.size(), " bytes; a sample needs ", length + 1));
  }
  return MakeCpp(job, std::make_unique<MemoryTokens>(std::move(tokens), length));
}

absl::StatusOr<std::unique_ptr<Contestant>> StepInC(const BenchJob& job) {
  auto contestant = std::make_unique<CContestant>();
  SHALE_RETURN_IF_ERROR(contestant->Start(job));
  return contestant;
}

absl::StatusOr<ReadSeconds> MeasureReads(const std::string& text_file, const std::vector<int32_t>& tokens,
                                         int64_t sequence_length, int64_t count) {
  SHALE_ASSIGN_OR_RETURN(TokenSource file, TokenSource::Open(text_file));
  SHALE_RETURN_IF_ERROR(file.CheckLength(sequence_length));
  TokenSamples samples(std::move(file), sequence_length);
  MemoryTokens memory(tokens, sequence_length);
  ReadSeconds seconds;
  SHALE_ASSIGN_OR_RETURN(seconds.file, ReadAlone(samples, count));
  SHALE_ASSIGN_OR_RETURN(seconds.memory, ReadAlone(memory, count));
  return seconds;
}

}  // namespace shale
