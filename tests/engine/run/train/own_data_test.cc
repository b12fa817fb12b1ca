// Laws of runs on a program's own data: how a job is divided, and where it is interrupted, changes no sample.
//
// W ranks, K micro-batches.
#include "tests/engine/run/train/own_data.h"

#include <fstream>

namespace shale {
namespace {

// fp32 sums of some hundred terms in another order, through six steps.
constexpr double kReordered = 1e-4;

std::vector<std::string> With(const std::vector<std::string>& first, const std::vector<std::string>& more) {
  std::vector<std::string> all = first;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The bytes of a file, as a program's own data.
class Bytes : public DataSource {
 public:
  explicit Bytes(std::string text)
      : DataSource({.name = "bytes",
                    .samples = (std::ssize(text) - 1) / kPositions,
                    .sequence_length = kPositions,
                    .vocabulary = 256}),
        text_(std::move(text)) {}
  absl::Status Read(int64_t number, const SampleParts& out) override {
    for (int64_t i = 0; i < kPositions; ++i) {
      out.inputs[i] = static_cast<uint8_t>(text_[number * kPositions + i]);
      out.targets[i] = static_cast<uint8_t>(text_[number * kPositions + i + 1]);
    }
    return absl::OkStatus();
  }

 private:
  const std::string text_;
};

TEST_F(OwnDataTest, TheTokensOfAFileTrainAsTheFileDoes) {
  std::string text;
  for (int i = 0; i < 12; ++i) absl::StrAppend(&text, "the ", i * i % 97, " quick brown foxes jump.\n");
  std::ofstream(Path("text")) << text;
  Bytes bytes(text);
  for (const bool epochs : {false, true}) {
    std::vector<std::string> overrides = {"sharding.ranks=2"};
    if (epochs) overrides = {"sharding.ranks=2", "lr_schedule.steps=", "lr_schedule.epochs=1.3"};
    const Run file = Train(MakeJob(With(overrides, {"data.path=" + Path("text")})), nullptr);
    const Run own = Train(MakeJob(overrides), &bytes);
    ASSERT_TRUE(file.status.ok()) << file.status;
    ASSERT_TRUE(own.status.ok()) << own.status;
    EXPECT_GE(file.losses.size(), 5);
    EXPECT_EQ(own.losses, file.losses);
  }
}

TEST_F(OwnDataTest, EveryNumberOfRanksTrainsTheSameWithAndWithoutWeights) {
  for (const char* weights : {"NONE", "OVER_TOKENS", "OVER_WEIGHTS"}) {
    const std::string setting = absl::StrCat("data.target_weights=", weights);
    MadeUpData data(Describe(setting != "data.target_weights=NONE"));
    const Run one = Train(MakeJob({setting, "batch.micro_batch=7"}), &data);
    ASSERT_EQ(one.losses.size(), 6) << one.status;
    for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=2", "sharding.ranks=3"}) {
      // K = 7, 4 and 3, and then 3, 2 and 1.
      for (const char* micro_batch : {"batch.micro_batch=1", "batch.micro_batch=3"}) {
        const Run several = Train(MakeJob({setting, ranks, micro_batch}), &data);
        ASSERT_EQ(several.losses.size(), 6) << several.status;
        for (int i = 0; i < 6; ++i) {
          EXPECT_NEAR(several.losses[i], one.losses[i], kReordered) << weights << " " << ranks << " " << micro_batch;
          EXPECT_EQ(several.steps[i].step_tokens, one.steps[i].step_tokens);
          EXPECT_EQ(several.steps[i].step_weight, one.steps[i].step_weight);
        }
      }
    }
  }
}

TEST_F(OwnDataTest, ARunGoesOnFromACheckpointWithTheSameBits) {
  for (const bool pulled : {false, true}) {
    for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=3"}) {
      const Job job = MakeJob({ranks, "data={order: SEQUENTIAL target_weights: OVER_WEIGHTS}"});
      const auto train = [&](const std::string& folder, const ResumeOptions& resume) {
        if (!pulled) {
          MadeUpData data(Describe(true));
          return Train(job, &data, folder, resume);
        }
        Iterator iterator{.weighted = true};
        PullSource data(Describe(true), iterator.Callbacks());
        return Train(job, &data, folder, resume);
      };
      const std::string folder = absl::StrCat(ranks, pulled);
      const Run whole = train(folder, {});
      ASSERT_EQ(whole.losses.size(), 6) << whole.status;
      const Run rest = train("", From(folder, 3));
      EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end())) << rest.status;
    }
  }
}

TEST_F(OwnDataTest, AnIteratorTrainsAsItsSamplesDoByNumberForEveryNumberOfRanks) {
  for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=2", "sharding.ranks=3"}) {
    const Job job = MakeJob({ranks, "data.order=SEQUENTIAL"});
    MadeUpData data(Describe(false));
    Iterator iterator;
    PullSource pulled(Describe(false), iterator.Callbacks());
    const Run by_number = Train(job, &data);
    ASSERT_EQ(by_number.losses.size(), 6) << by_number.status;
    EXPECT_EQ(Train(job, &pulled).losses, by_number.losses) << ranks;
    EXPECT_EQ(iterator.next, 42);  // The last step reads nothing ahead.
  }
}

TEST_F(OwnDataTest, AResumedRunMayHaveAnotherBatch) {
  Iterator first, second;
  PullSource data(Describe(false), first.Callbacks()), rest(Describe(false), second.Callbacks());
  ASSERT_TRUE(Train(MakeJob({"data.order=SEQUENTIAL"}), &data, "run").status.ok());
  const Run run =
      Train(MakeJob({"data.order=SEQUENTIAL", "batch.global_batch=4", "sharding.ranks=2"}), &rest, "", From("run", 3));
  EXPECT_EQ(run.losses.size(), 3) << run.status;
  EXPECT_EQ(second.next, 3 * 7 + 3 * 4);
}

TEST_F(OwnDataTest, EvaluationDataIsReadFromItsBeginningEachTime) {
  MadeUpData data(Describe(false)), other(Describe(false));
  const Job job = MakeJob({"telemetry={evaluate_every: 2 evaluation_sequences: 5}", "sharding.ranks=2"});
  const Run run = Train(job, &data, "", {}, &other);
  ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_EQ(run.evaluations.size(), 3);
  EXPECT_LT(run.evaluations.rbegin()->second, run.evaluations.begin()->second);
  const Run same = Train(job, &data, "", {}, &data);
  EXPECT_EQ(same.evaluations, run.evaluations);
}

TEST_F(OwnDataTest, AStepWithoutWeightIsReportedAndSkipped) {
  MadeUpData data(Describe(true), [](int64_t number, PulledSample& sample) {
    if (number >= 7 && number < 14) sample.weights.assign(kPositions, 0);
    return absl::OkStatus();
  });
  const Run run = Train(MakeJob({"data={order: SEQUENTIAL target_weights: OVER_WEIGHTS}"}), &data);
  ASSERT_EQ(run.steps.size(), 6) << run.status;
  for (int i = 0; i < 6; ++i) EXPECT_EQ(run.steps[i].updated, i != 1);
  EXPECT_EQ(run.steps[1].loss, 0);
  EXPECT_EQ(run.steps[1].step_weight, 0);
  EXPECT_GT(run.steps[1].step_tokens, 0);
}

}  // namespace
}  // namespace shale
