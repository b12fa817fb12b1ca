// Which checkpoint a run goes on from, and what it finds, keeps, refuses and reads there.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/run/train/bytes_read.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

TEST_F(ResumeTest, TheNewestWholeCheckpointIsTakenAndADamagedOneNamed) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  const std::string shard = JoinPath(Checkpoint("run", 6), ShardFileName(1, 3));
  ASSERT_EQ(truncate(shard.c_str(), 5000), 0);
  const Run resumed = Train(job, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("run", 3));
  ASSERT_EQ(resumed.resumed.passed_over.size(), 1);
  EXPECT_NE(resumed.resumed.passed_over[0].find(shard + " has 5000 bytes"), std::string::npos);
  // The resumed run has written it again.
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("run", 6)).ok());
  // A damaged checkpoint that is asked for by name is refused.
  ASSERT_EQ(truncate(shard.c_str(), 5000), 0);
  const absl::Status refused = Train(job, "run", From("run", 6)).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(
      std::string(refused.message()).find("; --resume=latest takes the newest intact checkpoint of the run folder"),
      std::string::npos)
      << refused;
}

TEST_F(ResumeTest, AnEarlierCheckpointIsGoneOnFromInAnotherFolder) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  const absl::Status refused = Train(job, "run", From("run", 3)).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(refused.message()).find("in a folder that holds " + Checkpoint("run", 6)), std::string::npos)
      << refused;
  const Run other = Train(job, "other", From("run", 3));
  ASSERT_TRUE(other.status.ok()) << other.status;
  ExpectSameBytes(Checkpoint("run", 6), Checkpoint("other", 6));
  // The checkpoints of two runs are not mixed either.
  EXPECT_EQ(Train(job, "other", From("run", 6)).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Train(job, "run").status.code(), absl::StatusCode::kFailedPrecondition);
  // A checkpoint that cannot be read is not in the way.
  ASSERT_EQ(truncate(JoinPath(Checkpoint("run", 6), "MANIFEST").c_str(), 10), 0);
  EXPECT_TRUE(Train(job, "run", From("run", 3)).status.ok());
}

// Without a copy of that checkpoint, a run that is killed before its first save would start from scratch, or continue
// from what lay in the folder.
TEST_F(ResumeTest, ARunThatGoesOnFromAnothersCheckpointHasItAtOnce) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  ASSERT_TRUE(
      Trainer::Create(
          job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path("branch"), .resume = From("run", 3)})
          .ok());
  const Run resumed = Train(job, "branch", {.from = ResumeFrom::kLatestOrStart});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("branch", 3));
  ExpectSameBytes(Checkpoint("run", 6), Checkpoint("branch", 6));
}

TEST_F(ResumeTest, ARunThatWasStoppedBeforeItsFirstStepGoesOnFromThere) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "straight").status.ok());
  {
    auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path("run")});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    (*trainer)->RequestStop();
    ASSERT_TRUE((*trainer)->Run({}).ok());
  }
  const Run resumed = Train(job, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("run", 0));
  ExpectSameBytes(Checkpoint("straight", 6), Checkpoint("run", 6));
}

// Only reading the payload shows the damage.
TEST_F(ResumeTest, ADamagedCheckpointThatWasPassedOverPushesNoneOut) {
  ASSERT_TRUE(Train(MakeJob({}), "run").status.ok());
  const std::string shard = JoinPath(Checkpoint("run", 6), ShardFileName(1, 3));
  std::string bytes = *ReadFile(shard, 1 << 24);
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileDurably(shard, bytes).ok());
  const Job longer = MakeJob({"lr_schedule.steps=8", "checkpoint.every_steps=4", "checkpoint.keep_last=2"});
  const Run resumed = Train(longer, "run", {.from = ResumeFrom::kLatest});
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.resumed.path, Checkpoint("run", 3));
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("run", 4)).ok());
  EXPECT_TRUE(CheckpointReader::Open(Checkpoint("run", 8)).ok());
}

TEST_F(ResumeTest, NothingBeginsAnewOverARunWhoseCheckpointsAreAllDamaged) {
  const Job job = MakeJob({});
  EXPECT_EQ(Train(job, "run", {.from = ResumeFrom::kLatest}).status.code(), absl::StatusCode::kNotFound);
  const Run first = Train(job, "run", {.from = ResumeFrom::kLatestOrStart});
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.resumed.path, "");
  for (int64_t step : {3, 6}) ASSERT_EQ(truncate(JoinPath(Checkpoint("run", step), "MANIFEST").c_str(), 10), 0);
  const absl::Status status = Train(job, "run", {.from = ResumeFrom::kLatestOrStart}).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("every checkpoint in " + Path("run") + " is damaged"),
            std::string::npos);
  // The ways on that the error names: a whole copy elsewhere, another folder, and this one anew.
  ASSERT_TRUE(Train(job, "copy", {}, 3).status.ok());
  EXPECT_TRUE(Train(job, "run", From("copy", 3)).status.ok());
  for (int64_t step : {3, 6}) ASSERT_EQ(truncate(JoinPath(Checkpoint("run", step), "MANIFEST").c_str(), 10), 0);
  EXPECT_TRUE(Train(job, "other", {}).status.ok());
  EXPECT_TRUE(Train(job, "run", {.from = ResumeFrom::kReplace}).status.ok());
}

TEST_F(ResumeTest, AnotherRunIsRefusedWithTheFirstDifference) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run", {}, 3).status.ok());
  std::string longer = *ReadFile(Path("text"), 1 << 20) + "and one more line, for another sample or two.\n";
  ASSERT_TRUE(WriteFileDurably(Path("longer"), longer).ok());
  const auto refusal = [&](const std::vector<std::string>& overrides) {
    const absl::Status status = Train(MakeJob(overrides), "run", {.from = ResumeFrom::kLatest}).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    return std::string(status.message());
  };
  const auto expect = [&](const std::vector<std::string>& overrides, const std::string& part) {
    const std::string message = refusal(overrides);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect({"model.decoder.layers=3"}, "it has \"layers: 2\", the job's model \"layers: 3\"");
  expect({"model.decoder.norm_epsilon=1e-4"}, "norm_epsilon: 1e-05");
  expect({"model.decoder.max_positions=16"}, "max_positions: 10");
  expect({"batch.sequence_length=9", "model.decoder.max_positions=10"}, "batch.sequence_length is 10, the job's 9");
  expect({"data.path=" + Path("longer")}, "samples, that of this run has");
  expect({"data.order=SEQUENTIAL"}, "data.order is SHUFFLED");
  expect({"data.seed=2"}, "data.seed is 1, the job's 2");
  expect({"optimizer.rule=LION"}, "its optimizer.rule is ADAMW, the job's is LION");
  expect({"optimizer.train_only=blocks.*"},
         "its parameter embedding.weight trains, and is frozen in the job (optimizer.train_only); keep train_only, or "
         "begin a new run");
  ASSERT_TRUE(Train(MakeJob({"optimizer.train_only=blocks.0.*"}), "frozen", {}, 3).status.ok());
  const absl::Status other = Train(MakeJob({"optimizer.train_only=blocks.0.*", "optimizer.frozen_weights=NF4"}),
                                   "frozen", {.from = ResumeFrom::kLatest})
                                 .status;
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find(" is not stored in NF4, unlike in the job (optimizer.frozen_weights); keep"),
            std::string::npos)
      << other;
  // Fields that only steer the training may change.
  const Run prolonged =
      Train(MakeJob({"lr_schedule.steps=8", "optimizer.learning_rate=1e-3", "batch.global_batch=5", "runtime.seed=9"}),
            "run", {.from = ResumeFrom::kLatest});
  EXPECT_TRUE(prolonged.status.ok()) << prolonged.status;
  EXPECT_EQ(prolonged.losses.size(), 5);
}

TEST_F(ResumeTest, ARunThatIsAtItsEndHasNothingToDo) {
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, "run").status.ok());
  const std::string before = *ReadFile(JoinPath(Checkpoint("run", 6), "MANIFEST"), 1 << 20);
  const Run again = Train(job, "run", {.from = ResumeFrom::kLatest});
  EXPECT_TRUE(again.status.ok()) << again.status;
  EXPECT_TRUE(again.losses.empty());
  EXPECT_EQ(*ReadFile(JoinPath(Checkpoint("run", 6), "MANIFEST"), 1 << 20), before);
}

TEST_F(ResumeTest, ARunInEpochsGoesOnWhereItsDataStood) {
  const std::vector<std::string> overrides = {"checkpoint.every_steps=5"};
  absl::StatusOr<Job> job = ParseJobText(
      absl::StrCat("model { mlp { embedding: 4 hidden: 12 } } batch { global_batch: 11 sequence_length: 8 } ",
                   "lr_schedule { epochs: 1.5 } checkpoint { every_steps: 5 keep_last: 100 } sharding { ranks: 2 } ",
                   "runtime { threads_per_rank: 1 } data { path: \"", Path("text"), "\" }"),
      "job");
  ASSERT_TRUE(job.ok()) << job.status();
  const Run straight = Train(*job, "straight");
  ASSERT_TRUE(straight.status.ok()) << straight.status;
  const Run resumed = Train(*job, "resumed", From("straight", 10));
  ASSERT_TRUE(resumed.status.ok()) << resumed.status;
  EXPECT_EQ(resumed.losses.rbegin()->first, straight.losses.rbegin()->first);
  for (const auto& [step, loss] : resumed.losses) EXPECT_EQ(loss, straight.losses.at(step)) << step;
  EXPECT_EQ(resumed.tokens, straight.tokens);
}

// A run in epochs sees each sample equally often, however large its batches become.
TEST_F(ResumeTest, ARunInEpochsEndsWithItsDataWhateverItsBatchBecomes) {
  const auto make = [&](int batch) {
    const absl::StatusOr<Job> job = ParseJobText(
        absl::StrCat("model { mlp { embedding: 4 hidden: 12 } } batch { global_batch: ", batch,
                     " sequence_length: 8 } ",
                     "lr_schedule { epochs: 1 } checkpoint { every_steps: 5 keep_last: 100 } ",
                     "runtime { threads_per_rank: 1 } data { path: \"", Path("text"), "\" evaluation_fraction: 0.1 }"),
        "job");
    EXPECT_TRUE(job.ok()) << job.status();
    return *job;
  };
  const Run straight = Train(make(8), "straight");
  ASSERT_TRUE(straight.status.ok()) << straight.status;
  for (const int batch : {3, 16}) {
    const std::string folder = absl::StrCat("batch", batch);
    const Job job = make(batch);
    auto trainer = Trainer::Create(
        job, {.backend = CreateBackend(job)->get(), .checkpoint_folder = Path(folder), .resume = From("straight", 5)});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    int64_t tokens = 0, evaluated_after = 0;
    const absl::Status status = (*trainer)->Run({.on_step =
                                                     [&](const StepReport& report) {
                                                       tokens = report.tokens;
                                                       return absl::OkStatus();
                                                     },
                                                 .on_evaluation =
                                                     [&](const EvaluationReport& report) {
                                                       evaluated_after = report.step;
                                                       return absl::OkStatus();
                                                     }});
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(tokens, straight.tokens);
    EXPECT_EQ(evaluated_after, (*trainer)->total_steps());
    EXPECT_EQ((*trainer)->steps_done(), (*trainer)->total_steps());
  }
}

TEST_F(ResumeTest, EachByteIsReadOnceByTheRankThatNeedsIt) {
  const Job job = MakeJob({"model.decoder.width=96", "model.decoder.vocabulary=4096"});
  ASSERT_TRUE(Train(job, "run", {}, 3).status.ok());
  const auto read_by = [&](const ResumeOptions& resume) {
    const int64_t before = BytesRead();
    EXPECT_TRUE(Trainer::Create(job, {.backend = CreateBackend(job)->get(), .resume = resume}).ok());
    return BytesRead() - before;
  };
  const CheckpointReader checkpoint = *CheckpointReader::Open(Checkpoint("run", 3));
  // Both runs read the data. The heads of a checkpoint are read twice, once to be checked and once with the first
  // chunk.
  const int64_t more = read_by(From("run", 3)) - read_by({});
  EXPECT_GE(more, checkpoint.size_bytes());
  EXPECT_LE(more, checkpoint.size_bytes() + (32 << 10));
  EXPECT_GT(checkpoint.size_bytes(), 1 << 20);
}

TEST_F(ResumeTest, TheSnapshotIsALineOfThePlan) {
  const auto arena = [&](const std::vector<std::string>& overrides, int64_t* snapshot) {
    auto trainer = Trainer::Create(MakeJob(overrides), {.backend = CreateBackend(MakeJob(overrides))->get()});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    *snapshot = (*trainer)->plan().train.memory.bytes_at_peak[static_cast<int>(BufferCategory::kSnapshot)];
    return (*trainer)->plan().arena_bytes;
  };
  int64_t with = 0, without = 0, only_at_end = 0;
  const int64_t more = arena({}, &with) - arena({"checkpoint.asynchronous=false"}, &without);
  arena({"checkpoint.every_steps=0"}, &only_at_end);
  EXPECT_EQ(without, 0);
  EXPECT_EQ(only_at_end, 0);
  EXPECT_GT(with, 0);
  EXPECT_EQ(more, with);
}

}  // namespace
}  // namespace shale
