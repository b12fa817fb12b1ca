// What a program's own data can do wrong: each mistake is a Status that names the position and the reason, and the run
// keeps its state.
#include <stdexcept>

#include "gmock/gmock.h"
#include "tests/engine/run/train/own_data.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

class OwnDataErrors : public OwnDataTest {
 protected:
  // Expects that a run fails with this message.
  void ExpectRefused(const std::vector<std::string>& overrides, DataSource* data, absl::StatusCode code,
                     const std::string& message, const std::string& folder = "", DataSource* evaluation = nullptr) {
    const Run run = Train(MakeJob(overrides), data, folder, {}, evaluation);
    EXPECT_EQ(run.status.code(), code) << run.status;
    EXPECT_THAT(std::string(run.status.message()), HasSubstr(message));
  }
  void ExpectInvalid(const std::vector<std::string>& overrides, const DataDescription& description,
                     const std::string& message) {
    MadeUpData data(description);
    ExpectRefused(overrides, &data, absl::StatusCode::kInvalidArgument, message);
  }
};

DataDescription Changed(void (*change)(DataDescription&)) {
  DataDescription description = Describe(false);
  change(description);
  return description;
}

TEST_F(OwnDataErrors, AJobHasOneKindOfData) {
  MadeUpData data(Describe(false));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused({"data.path=/text"}, &data, kInvalid,
                "data.path: found \"/text\", and the program gives the trainer data too; keep one of them");
  ExpectRefused({}, nullptr, kInvalid,
                "data.path: missing; give a text file, a token file, or a folder of such files (a program may instead "
                "give the trainer data of its own)");
  ExpectRefused({}, nullptr, kInvalid, "the program gives evaluation_data and no data", "", &data);
  ExpectRefused({"telemetry.evaluate_every=2"}, &data, kInvalid,
                "telemetry.evaluate_every: there is no evaluation data; give the trainer evaluation_data");
}

TEST_F(OwnDataErrors, ADescriptionThatFitsNeitherJobNorModelIsRefused) {
  ExpectInvalid({}, Changed([](DataDescription& d) { d.name = "two\nlines"; }), "must be one line of 1 to 200 bytes");
  ExpectInvalid({}, Changed([](DataDescription& d) { d.samples = 0; }), "data \"made up\": it has 0 samples; wanted 1");
  ExpectInvalid({}, Changed([](DataDescription& d) { d.features = -1; }),
                "a position has -1 features; wanted 0 to 2^24");
  ExpectInvalid({"batch.sequence_length=8"}, Describe(false),
                "its samples have 10 positions, batch.sequence_length is 8; make them equal");
  ExpectInvalid({}, Changed([](DataDescription& d) { d.features = 3; }),
                "a position has 3 features, and the model reads 0 (0: tokens)");
  ExpectInvalid({}, Changed([](DataDescription& d) { d.target_values = 2; }),
                "a position has 2 target values, and the model reads 0 (0: tokens)");
  ExpectInvalid({"model.decoder.vocabulary=20"}, Describe(false), "its vocabulary is 29, that of the model is 20");
  ExpectInvalid({}, Describe(true),
                "its targets have weights, and data.target_weights is NONE; set OVER_TOKENS or OVER_WEIGHTS");
  ExpectInvalid({"data.target_weights=OVER_TOKENS"}, Describe(false),
                "its targets have no weights; set data.target_weights=NONE");
  const auto endless = [](DataDescription& d) { d.samples = kEndlessSamples; };
  ExpectInvalid({}, Changed(endless), "it has no end, so it cannot be shuffled; set data.order=SEQUENTIAL");
  ExpectInvalid({"lr_schedule.steps=", "lr_schedule.epochs=2", "data.order=SEQUENTIAL"}, Changed(endless),
                "it has no end, so lr_schedule.epochs has no meaning; give lr_schedule.steps");
}

TEST_F(OwnDataErrors, AnIteratorHasOneUseAndSavesOnlyWithCallbacks) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Iterator iterator;
  PullSource pulled(Describe(false), iterator.Callbacks());
  ExpectRefused({}, &pulled, kInvalid, "it can only be read in order, so it cannot be shuffled");
  MadeUpData data(Describe(false));
  ExpectRefused({}, &data, kInvalid, "it can only be read once, in order; evaluation data must be readable", "",
                &pulled);
  PullSource forgetful(Describe(false), {.next = iterator.Callbacks().next});
  ExpectRefused({"data.order=SEQUENTIAL"}, &forgetful, kInvalid,
                "callbacks save and restore are missing, which checkpoints need", "run");
  PullSource empty(Describe(false), {});
  ExpectRefused({"data.order=SEQUENTIAL"}, &empty, kInvalid,
                "position 0 of the data \"made up\": callback next is missing");
  EXPECT_TRUE(Train(MakeJob({"data.order=SEQUENTIAL"}), &forgetful).status.ok());
}

// Sample 24 is read ahead while the third step of 7 samples runs, and the fourth step needs it.
TEST_F(OwnDataErrors, ABadSampleEndsItsStepAndTheRunIsSavedAndGoesOn) {
  const Job job = MakeJob({"data={order: SEQUENTIAL target_weights: OVER_WEIGHTS}", "sharding.ranks=2"});
  MadeUpData good(Describe(true));
  const Run whole = Train(job, &good);
  ASSERT_EQ(whole.losses.size(), 6) << whole.status;
  struct Mistake {
    absl::StatusCode code;
    std::string reason;
    std::function<absl::Status(PulledSample&)> make;
  };
  const auto set = [](auto change) {
    return [change](PulledSample& sample) {
      change(sample);
      return absl::OkStatus();
    };
  };
  const std::vector<Mistake> mistakes = {
      {absl::StatusCode::kUnavailable, "the disk is asleep",
       [](PulledSample&) { return absl::UnavailableError("the disk is asleep"); }},
      {absl::StatusCode::kUnknown, "its source threw: no such row",
       [](PulledSample&) -> absl::Status { throw std::runtime_error("no such row"); }},
      {absl::StatusCode::kUnknown, "its source threw something that is no std::exception",
       [](PulledSample&) -> absl::Status { throw 7; }},
      {absl::StatusCode::kOutOfRange, "input 3 is 29; the model allows 0 to 28",
       set([](PulledSample& s) { s.inputs[3] = 29; })},
      {absl::StatusCode::kOutOfRange, "input 0 is -1; the model allows 0 to 28",
       set([](PulledSample& s) { s.inputs[0] = -1; })},
      {absl::StatusCode::kOutOfRange, "target 9 is 400; the model allows 0 to 28, and -1 for a position without",
       set([](PulledSample& s) { s.targets[9] = 400; })},
      {absl::StatusCode::kOutOfRange, "weight 2 is nan; wanted a finite number",
       set([](PulledSample& s) { s.weights[2] = std::nanf(""); })},
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    const Mistake& mistake = mistakes[i];
    MadeUpData bad(Describe(true), [&](int64_t number, PulledSample& sample) {
      return number == 24 ? mistake.make(sample) : absl::OkStatus();
    });
    const std::string folder = absl::StrCat("run", i);
    const Run run = Train(job, &bad, folder);
    EXPECT_EQ(run.status.code(), mistake.code) << run.status;
    EXPECT_THAT(std::string(run.status.message()),
                HasSubstr("position 24 of the data (sample 24 of \"made up\"): " + mistake.reason));
    EXPECT_EQ(run.losses, std::vector<double>(whole.losses.begin(), whole.losses.begin() + 3));
    const Run rest = Train(job, &good, "", From(folder, 3));
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 3, whole.losses.end())) << rest.status;
  }
}

TEST_F(OwnDataErrors, AnIteratorThatFailsIsSavedWhereTheLastStepEnded) {
  const Job job = MakeJob({"data.order=SEQUENTIAL", "checkpoint.every_steps=0"});
  Iterator full;
  PullSource all(Describe(false), full.Callbacks());
  const Run whole = Train(job, &all);
  ASSERT_EQ(whole.losses.size(), 6) << whole.status;
  struct Mistake {
    absl::StatusCode code;
    std::string reason;
    std::function<absl::StatusOr<bool>(PulledSample&)> next;
  };
  const std::vector<Mistake> mistakes = {
      {absl::StatusCode::kOutOfRange, "the data ended here; give more, or fewer lr_schedule.steps",
       [](PulledSample&) { return false; }},
      {absl::StatusCode::kUnknown, "callback next threw: broken pipe",
       [](PulledSample&) -> absl::StatusOr<bool> { throw std::runtime_error("broken pipe"); }},
      {absl::StatusCode::kInvalidArgument, "callback next gave 9 inputs; wanted 10",
       [](PulledSample& sample) {
         sample = MakeSample(30, false);
         sample.inputs.pop_back();
         return true;
       }},
      {absl::StatusCode::kInvalidArgument, "callback next gave 10 weights; wanted 0",
       [](PulledSample& sample) {
         sample = MakeSample(30, true);
         return true;
       }},
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    Iterator iterator;
    PullCallbacks callbacks = iterator.Callbacks();
    const auto next = callbacks.next;
    callbacks.next = [&, next](PulledSample& sample) {
      return iterator.next == 30 ? mistakes[i].next(sample) : next(sample);
    };
    PullSource bad(Describe(false), callbacks);
    const std::string folder = absl::StrCat("run", i);
    const Run run = Train(job, &bad, folder);
    EXPECT_EQ(run.status.code(), mistakes[i].code) << run.status;
    EXPECT_THAT(std::string(run.status.message()),
                HasSubstr("position 30 of the data (sample 30 of \"made up\"): " + mistakes[i].reason));
    EXPECT_EQ(run.losses.size(), 4);
    Iterator repaired;
    PullSource good(Describe(false), repaired.Callbacks());
    const Run rest = Train(job, &good, "", From(folder, 4));
    EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 4, whole.losses.end())) << rest.status;
  }
}

TEST_F(OwnDataErrors, AStateThatCannotBeSavedOrRestoredIsRefused) {
  const Job job = MakeJob({"data.order=SEQUENTIAL"});
  const auto run_with = [&](const std::function<absl::StatusOr<std::string>()>& save) {
    Iterator iterator;
    PullCallbacks callbacks = iterator.Callbacks();
    callbacks.save = save;
    PullSource data(Describe(false), callbacks);
    return Train(job, &data, "run").status;
  };
  EXPECT_THAT(
      std::string(run_with([] { return std::string((1 << 20) + 1, 'x'); }).message()),
      HasSubstr("position 0 of the data \"made up\": callback save returned a state of 1048577 bytes; at most"));
  int saves = 0;
  EXPECT_THAT(std::string(run_with([&]() -> absl::StatusOr<std::string> {
                            if (++saves < 4) return "at 0";
                            return absl::InternalError("locked");
                          }).message()),
              HasSubstr("position 21 of the data \"made up\": locked"));
  Iterator iterator;
  PullSource data(Describe(false), iterator.Callbacks());
  ASSERT_TRUE(Train(job, &data, "good").status.ok());
  PullCallbacks callbacks = iterator.Callbacks();
  callbacks.restore = [](const std::string& state) { return absl::DataLossError("cannot read " + state); };
  PullSource forgetful(Describe(false), callbacks);
  EXPECT_THAT(std::string(Train(job, &forgetful, "", From("good", 3)).status.message()),
              HasSubstr("position 21 of the data \"made up\": cannot read at 21"));
}

TEST_F(OwnDataErrors, ARunDoesNotGoOnWithOtherData) {
  MadeUpData data(Describe(false));
  const Job job = MakeJob({});
  ASSERT_TRUE(Train(job, &data, "run").status.ok());
  MadeUpData renamed(Changed([](DataDescription& d) { d.name = "something else"; }));
  EXPECT_THAT(std::string(Train(job, &renamed, "", From("run", 3)).status.message()),
              HasSubstr("its tokens are of \"made up\", those of this run of \"something else\""));
  MadeUpData longer(Changed([](DataDescription& d) { d.samples = 32; }));
  EXPECT_THAT(std::string(Train(job, &longer, "", From("run", 3)).status.message()),
              HasSubstr("its data has 31 samples, that of this run has 32"));
}

}  // namespace
}  // namespace shale
