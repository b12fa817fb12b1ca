// Tests the API for embedders, from a job's text to trained weights.
#include "engine/api/trainer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "kernels/hardware_threads.h"
#include "tests/engine/files/data/llmc_bytes.h"
#include "tests/engine/files/io/process_resources.h"

namespace shale {
namespace {

// Writes a text with structure to learn, whose length is not a multiple of anything. Returns its path.
std::string WriteText(const std::string& name, int lines) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name, ".", getpid(), ".txt");
  std::ofstream out(path);
  for (int i = 0; i < lines; ++i) out << "the " << i % 7 << " quick brown foxes jump over the lazy dog.\n";
  return path;
}

Job MustParse(const std::string& text, std::vector<std::string> overrides = {}) {
  absl::StatusOr<Job> job = ParseJobText(text, "job.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

Job SmallJob(const std::string& path, std::vector<std::string> overrides = {}) {
  return MustParse(absl::StrCat(R"(
model { decoder { family: LLAMA width: 32 layers: 2 heads: 4 kv_heads: 2 hidden: 48 } }
batch { global_batch: 6 micro_batch: 2 sequence_length: 24 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 12 warmup_steps: 2 }
runtime { threads_per_rank: 1 }
data { path: ")",
                                path, "\" evaluation_fraction: 0.2 }\n"),
                   std::move(overrides));
}

std::unique_ptr<Trainer> MustCreate(const Job& job) {
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get()});
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  return trainer.ok() ? *std::move(trainer) : nullptr;
}

std::vector<StepReport> RunAll(Trainer& trainer) {
  std::vector<StepReport> reports;
  while (!trainer.done()) {
    absl::StatusOr<StepReport> report = trainer.Step();
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) break;
    reports.push_back(*report);
  }
  return reports;
}

TEST(Trainer, ItsJobHasTheThreadsOfARank) {
  Job job = SmallJob(WriteText("threads", 20));
  job.runtime.threads_per_rank = 0;
  auto trainer = MustCreate(job);
  ASSERT_NE(trainer, nullptr);
  EXPECT_EQ(trainer->job().runtime.threads_per_rank, ThreadsPerRank(job.runtime, 2, HardwareThreads()));
}

TEST(Trainer, LearnsATextAndEvaluatesIt) {
  auto trainer = MustCreate(SmallJob(WriteText("learn", 120), {"lr_schedule.steps=60"}));
  ASSERT_NE(trainer, nullptr);
  EXPECT_EQ(Vocabulary(trainer->job().model), 256);
  absl::StatusOr<EvaluationReport> before = trainer->Evaluate(4);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_NEAR(before->loss, std::log(256.0), 0.3);
  const std::vector<StepReport> reports = RunAll(*trainer);
  ASSERT_EQ(reports.size(), 60);
  EXPECT_EQ(reports.back().step, 60);
  EXPECT_EQ(reports.back().tokens, 60 * 6 * 24);
  EXPECT_LT(reports.back().loss, 1.5);
  EXPECT_EQ(reports.back().peak_bytes_measured, trainer->plan().train.memory.peak_bytes);
  absl::StatusOr<EvaluationReport> after = trainer->Evaluate(4);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_LT(after->loss, 1.5);
  EXPECT_FALSE(trainer->Step().ok());
}

// The second micro-batch adds to gradients of few elements over many tokens. oneDNN needs scratch memory only for that.
TEST(Trainer, AddsUpSmallGradientsOfManyTokens) {
  const std::string path = WriteText("small", 200);
  std::vector<double> norms;
  for (const char* micro_batch : {"batch.micro_batch=16", "batch.micro_batch=8"}) {
    auto trainer = MustCreate(SmallJob(path, {"sharding.ranks=1", "model.decoder.width=64", "batch.sequence_length=128",
                                              "batch.global_batch=16", micro_batch, "lr_schedule.steps=3"}));
    ASSERT_NE(trainer, nullptr);
    const std::vector<StepReport> reports = RunAll(*trainer);
    ASSERT_EQ(reports.size(), 3);
    EXPECT_EQ(reports.back().peak_bytes_measured, trainer->plan().train.memory.peak_bytes);
    norms.push_back(reports.back().gradient_norm);
  }
  EXPECT_NEAR(norms[1] / norms[0], 1, 1e-3);
}

// Regression: a job that a program had filled in itself, without a sequence length, divided by zero once its data was
// open.
TEST(Trainer, RefusesAJobWithoutASequenceLength) {
  Job job = SmallJob(WriteText("length", 20));
  const auto backend = CreateBackend(job);
  ASSERT_TRUE(backend.ok()) << backend.status();
  for (const int64_t length : {0, -1}) {
    job.batch.sequence_length = length;
    const absl::Status status = Trainer::Create(job, {.backend = backend->get()}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string wanted = absl::StrCat("batch.sequence_length: found ", length, "; allowed: 1 to 16777216");
    EXPECT_NE(status.message().find(wanted), absl::string_view::npos) << status;
  }
}

TEST(Trainer, RefusesEvaluationDataOfAnotherTokenizer) {
  const std::string training = absl::StrCat(::testing::TempDir(), "/llama3.", getpid(), ".bin");
  const std::string evaluation = absl::StrCat(::testing::TempDir(), "/gpt2.", getpid(), ".bin");
  std::ofstream(training, std::ios::binary) << LlmcBytes(std::vector<uint32_t>(400, 7));
  std::ofstream(evaluation, std::ios::binary) << LlmcBytes(std::vector<uint16_t>(400, 7));
  const Job job = SmallJob(training, {"data.evaluation_fraction=", "data.evaluation_path=" + evaluation});
  const absl::Status status = Trainer::Create(job, {.backend = CreateBackend(job)->get()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            absl::StrCat("data.evaluation_path: the tokens of ", evaluation, " are of \"GPT-2 (llm.c)\", those of ",
                         "data.path of \"Llama 3 (llm.c)\"; data that is used together must have the same "
                         "tokenizer"));
}

TEST(Trainer, RunTellsOfStepsAndEvaluationsAndEndsWhenTold) {
  const Job job = SmallJob(WriteText("run", 60), {"telemetry.evaluate_every=4", "telemetry.evaluation_sequences=4"});
  auto trainer = MustCreate(job);
  ASSERT_NE(trainer, nullptr);
  std::vector<int64_t> steps, evaluations;
  TrainCallbacks callbacks;
  callbacks.on_step = [&](const StepReport& report) {
    steps.push_back(report.step);
    if (report.step == 10) trainer->RequestStop();
    return absl::OkStatus();
  };
  callbacks.on_evaluation = [&](const EvaluationReport& report) {
    evaluations.push_back(report.step);
    return absl::OkStatus();
  };
  ASSERT_TRUE(trainer->Run(callbacks).ok());
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(evaluations, (std::vector<int64_t>{4, 8}));

  auto refused = MustCreate(job);
  ASSERT_NE(refused, nullptr);
  callbacks.on_step = [](const StepReport&) { return absl::CancelledError("enough"); };
  EXPECT_EQ(refused->Run(callbacks).message(), "enough");
  EXPECT_EQ(refused->steps_done(), 1);
}

// Names what it is told of: "plan", "allocating", "step 1", ...
class Names : public EventSink {
 public:
  void Take(const RunEvent& event) override {
    EXPECT_GE(event.unix_seconds, last_);
    last_ = event.unix_seconds;
    std::visit([&](const auto& what) { names.push_back(Name(what)); }, event.what);
  }
  std::vector<std::string> names;

 private:
  static std::string Name(const PlanReady& plan) { return absl::StrCat("plan of ", plan.total_steps); }
  static std::string Name(const Progress& progress) { return absl::StrCat("stage ", static_cast<int>(progress.stage)); }
  static std::string Name(const StepReport& report) { return absl::StrCat("step ", report.step); }
  static std::string Name(const EvaluationReport& report) { return absl::StrCat("evaluation ", report.step); }
  static std::string Name(const CheckpointReport& report) { return absl::StrCat("checkpoint ", report.step); }
  static std::string Name(const Warning& warning) { return absl::StrCat("warning ", warning.text); }
  static std::string Name(const Failure& failure) {
    return absl::StrCat("failure of ", failure.culprit, " after ", failure.step);
  }
  static std::string Name(const Finished& finished) {
    return absl::StrCat("finished ", finished.step, " of ", finished.total_steps);
  }

  double last_ = 1e9;
};

TEST(Trainer, TellsItsEventsInTheOrderInWhichTheyHappen) {
  const Job job = SmallJob(WriteText("events", 60), {"lr_schedule.steps=4", "telemetry.evaluate_every=2",
                                                     "checkpoint.every_steps=2", "checkpoint.asynchronous=false"});
  Names first;
  const auto backend = CreateBackend(job);
  ASSERT_TRUE(backend.ok()) << backend.status();
  TrainerOptions options{.backend = backend->get()};
  options.checkpoint_folder = absl::StrCat(::testing::TempDir(), "/events_checkpoints.", getpid());
  options.events = &first;
  {
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, options);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    (*trainer)->RequestStop();
    ASSERT_TRUE((*trainer)->Run({}).ok());
  }
  EXPECT_EQ(first.names,
            (std::vector<std::string>{"plan of 4", "stage 0", "stage 1", "checkpoint 0", "finished 0 of 4"}));

  Names resumed;
  options.events = &resumed;
  options.resume = {.from = ResumeFrom::kLatest};
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, options);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->Run({}).ok());
  EXPECT_EQ(resumed.names, (std::vector<std::string>{"plan of 4", "stage 0", "stage 2", "stage 3", "step 1", "step 2",
                                                     "evaluation 2", "checkpoint 2", "step 3", "step 4", "evaluation 4",
                                                     "checkpoint 4", "finished 4 of 4"}));
}

TEST(Trainer, TellsOfTheFirstFailureOnly) {
  Job job = SmallJob(WriteText("failures", 60));
  const auto backend = CreateBackend(job);
  Names events;
  auto trainer = Trainer::Create(job, {.backend = backend->get(), .events = &events});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  TrainCallbacks callbacks;
  callbacks.on_step = [](const StepReport&) { return absl::CancelledError("enough"); };
  EXPECT_FALSE((*trainer)->Run(callbacks).ok());
  ASSERT_FALSE(events.names.empty());
  EXPECT_EQ(events.names.back(), "failure of run after 1");

  // A call that is refused is no failure of the run.
  Names refused;
  Job without = job;
  without.data.evaluation_fraction = 0;
  auto other = Trainer::Create(without, {.backend = backend->get(), .events = &refused});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE((*other)->Evaluate(4).ok());
  EXPECT_EQ(refused.names.back(), "stage 1");

  job.data.path = "/nowhere";
  EXPECT_FALSE(Trainer::Create(job, {.backend = backend->get(), .events = &events}).ok());
  EXPECT_EQ(events.names.back(), "failure of start after 0");
}

// An evaluation used to count micro-batches of each rank, so another number of ranks evaluated other text.
TEST(Trainer, EvaluatesTheSameSequencesWithAnyRanksAndMicroBatch) {
  const std::string path = WriteText("evaluated", 120);
  absl::StatusOr<EvaluationReport> first = absl::NotFoundError("none yet");
  for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=2", "sharding.ranks=3"}) {
    for (const char* micro_batch : {"batch.micro_batch=1", "batch.micro_batch=2", "batch.micro_batch=5"}) {
      auto trainer = MustCreate(SmallJob(path, {ranks, micro_batch}));
      ASSERT_NE(trainer, nullptr);
      const absl::StatusOr<EvaluationReport> report = trainer->Evaluate(7);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->tokens, 7 * 24) << ranks << " " << micro_batch;
      if (!first.ok()) first = report;
      // The sum over 168 tokens in fp64 of fp32 losses, each near 5.5.
      EXPECT_NEAR(report->loss, first->loss, 1e-5) << ranks << " " << micro_batch;
    }
  }
}

TEST(Trainer, EvaluationChangesNothingOfTheTraining) {
  const Job job = SmallJob(WriteText("pure", 60));
  auto plain = MustCreate(job), watched = MustCreate(job);
  ASSERT_TRUE(plain && watched);
  for (int i = 0; i < 5; ++i) {
    absl::StatusOr<StepReport> a = plain->Step(), b = watched->Step();
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->loss, b->loss);
    ASSERT_TRUE(watched->Evaluate(3).ok());
  }
}

TEST(Trainer, SeveralTrainersInOneProcessDoNotDisturbEachOther) {
  const Job job = SmallJob(WriteText("several", 60));
  auto alone = MustCreate(job);
  ASSERT_NE(alone, nullptr);
  const std::vector<StepReport> expected = RunAll(*alone);
  auto first = MustCreate(job), second = MustCreate(job);
  ASSERT_TRUE(first && second);
  std::vector<StepReport> a, b;
  std::thread thread([&] { a = RunAll(*first); });
  b = RunAll(*second);
  thread.join();
  ASSERT_EQ(a.size(), expected.size());
  ASSERT_EQ(b.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(a[i].loss, expected[i].loss);
    EXPECT_EQ(b[i].loss, expected[i].loss);
  }
}

TEST(Trainer, TheLossDoesNotDependOnRanksOrMicroBatches) {
  const std::string text = WriteText("ranks", 60);
  auto reference = MustCreate(SmallJob(text, {"sharding.ranks=1", "batch.micro_batch=6"}));
  ASSERT_NE(reference, nullptr);
  const double loss = RunAll(*reference)[0].loss;
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"sharding.ranks=3", "batch.micro_batch=1"},
           {"sharding.ranks=2", "sharding.strategy=DDP", "sharding.accumulation=AUTO"},
           {"sharding.ranks=4", "sharding.accumulation=LAYERED"}}) {
    auto other = MustCreate(SmallJob(text, overrides));
    ASSERT_NE(other, nullptr);
    EXPECT_NEAR(RunAll(*other)[0].loss, loss, 1e-5 * loss);
  }
}

TEST(Trainer, ARunInEpochsEndsWithAShortBatch) {
  const std::string text = WriteText("epochs", 10);
  auto trainer = MustCreate(SmallJob(
      text, {"lr_schedule.steps=", "lr_schedule.epochs=1", "data.evaluation_fraction=", "batch.global_batch=7"}));
  ASSERT_NE(trainer, nullptr);
  std::ifstream in(text);
  const std::string content((std::istreambuf_iterator<char>(in)), {});
  const int64_t samples = (static_cast<int64_t>(content.size()) - 1) / 24;
  ASSERT_NE(samples % 7, 0);
  const std::vector<StepReport> reports = RunAll(*trainer);
  EXPECT_EQ(std::ssize(reports), (samples + 6) / 7);
  EXPECT_EQ(reports.back().step_tokens, samples % 7 * 24);
  EXPECT_EQ(reports.back().tokens, samples * 24);
}

TEST(Trainer, AStopIsTakenAtTheNextStep) {
  auto trainer = MustCreate(SmallJob(WriteText("stop", 60)));
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->Step().ok());
  trainer->RequestStop();
  EXPECT_TRUE(trainer->done());
  EXPECT_FALSE(trainer->Step().ok());
  EXPECT_EQ(trainer->steps_done(), 1);
}

TEST(Trainer, NonFiniteStopsOrSkipsByChoice) {
  const std::string text = WriteText("nonfinite", 60);
  for (const bool skip : {false, true}) {
    auto trainer = MustCreate(SmallJob(text, {absl::StrCat("optimizer.non_finite=", skip ? "SKIP" : "STOP")}));
    ASSERT_NE(trainer, nullptr);
    std::vector<float> norm(32, std::numeric_limits<float>::infinity()), read(32);
    ASSERT_TRUE(trainer->state().WriteParameter("final_norm.weight", norm).ok());
    absl::StatusOr<StepReport> report = trainer->Step();
    ASSERT_EQ(report.ok(), skip) << report.status();
    if (skip) {
      EXPECT_FALSE(report->updated);
      EXPECT_TRUE(std::isnan(report->loss));
    } else {
      EXPECT_NE(report.status().message().find("optimizer.non_finite=SKIP"), std::string::npos) << report.status();
      EXPECT_EQ(trainer->steps_done(), 0);
      EXPECT_FALSE(trainer->Step().ok());
    }
    ASSERT_TRUE(trainer->state().ReadParameter("final_norm.weight", absl::MakeSpan(read)).ok());
    EXPECT_EQ(read, norm);
  }
}

TEST(Trainer, ParametersReadBackAsWrittenForEveryKindOfMaster) {
  const std::string text = WriteText("masters", 60);
  for (const std::vector<std::string>& overrides :
       std::vector<std::vector<std::string>>{{},
                                             {"precision.compute=BF16"},
                                             {"precision.compute=BF16", "precision.master=SPLIT"},
                                             {"sharding.strategy=DDP", "precision.compute=BF16"},
                                             {"sharding.strategy=ZERO1"}}) {
    auto trainer = MustCreate(SmallJob(text, overrides));
    ASSERT_NE(trainer, nullptr);
    for (const Parameter& parameter : trainer->state().parameters()) {
      std::vector<float> values(parameter.elements()), read(values.size());
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 0.1f;
      ASSERT_TRUE(trainer->state().WriteParameter(parameter.name, values).ok());
      ASSERT_TRUE(trainer->state().ReadParameter(parameter.name, absl::MakeSpan(read)).ok());
      EXPECT_EQ(read, values) << parameter.name;
    }
    EXPECT_EQ(trainer->state().WriteParameter("nothing", {}).code(), absl::StatusCode::kNotFound);
  }
}

TEST(Trainer, RefusesWhatItCannotDoWithAWayOut) {
  const auto message = [](const Job& job) {
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get()});
    return trainer.ok() ? std::string("created") : std::string(trainer.status().message());
  };
  const std::string text = WriteText("refuse", 60);
  EXPECT_NE(message(SmallJob("/no/such/file")).find("/no/such/file"), std::string::npos);
  EXPECT_NE(message(SmallJob(WriteText("short", 0))).find("empty"), std::string::npos);
  const std::string budget = message(SmallJob(text, {"memory.budget_bytes=200000"}));
  EXPECT_NE(budget.find("budget"), std::string::npos) << budget;
  const std::string vocabulary = message(SmallJob(text, {"model.decoder.vocabulary=100"}));
  EXPECT_NE(vocabulary.find("100"), std::string::npos) << vocabulary;
  const std::string sequence =
      message(SmallJob(WriteText("few", 1), {"data.evaluation_fraction=", "batch.sequence_length=100"}));
  EXPECT_NE(sequence.find("100"), std::string::npos) << sequence;
}

TEST(Trainer, ResidentMemoryOfALargeJobIsItsArenasAndThePrintedOverhead) {
  if (!ResidenceIsOurs()) GTEST_SKIP() << "resident memory is the sanitizer's";
  // About 72 M parameters on two ranks, with 16 bytes of state for each parameter.
  auto trainer = MustCreate(
      SmallJob(WriteText("large", 60), {"model.decoder.vocabulary=60000", "model.decoder.width=512",
                                        "model.decoder.hidden=1024", "batch.global_batch=2", "batch.micro_batch=1"}));
  ASSERT_NE(trainer, nullptr);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(trainer->Step().ok());
  const int64_t arenas = 2 * trainer->plan().arena_bytes;
  ASSERT_GT(arenas, int64_t{1} << 30);
  const double expected = static_cast<double>(arenas + trainer->devices().overhead_bytes);
  EXPECT_NEAR(static_cast<double>(ResidentBytes()), expected, 0.05 * expected);
}

TEST(Trainer, MemoryDoesNotGrowAfterTheFirstSteps) {
  if (!ResidenceIsOurs()) GTEST_SKIP() << "resident memory is the sanitizer's";
  auto trainer = MustCreate(SmallJob(WriteText("rss", 60), {"lr_schedule.steps=220"}));
  ASSERT_NE(trainer, nullptr);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(trainer->Step().ok());
  const int64_t before = ResidentBytes();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(trainer->Step().ok());
  EXPECT_LT(ResidentBytes() - before, 1 << 20);
}

}  // namespace
}  // namespace shale
