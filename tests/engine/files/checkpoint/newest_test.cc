#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/framing.h"
#include "engine/files/checkpoint/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/checkpoint/sample_state.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NewestTest : public ::testing::Test {
 protected:
  std::string Path(int64_t step) const { return JoinPath(temp_.path(), CheckpointFolderName(step)); }
  void Write(int64_t step) { state_.WriteCheckpoint(Path(step), {.ranks = 2, .step = step}); }
  // Returns the newest checkpoint for which `answer_` is OK. Records in `used_` the steps that were tried.
  absl::StatusOr<NewestCheckpoint> Newest() {
    used_.clear();
    return UseNewestCheckpoint(temp_.path(), [&](const CheckpointReader& checkpoint) {
      used_.push_back(checkpoint.manifest().step);
      return answer_;
    });
  }

  TempFolder temp_;
  SampleState state_ = SampleState({{"w", {3, 5}}}, 1);
  std::vector<int64_t> used_;
  absl::Status answer_;
};

TEST_F(NewestTest, NoCheckpointIsNoError) {
  const absl::StatusOr<NewestCheckpoint> newest = Newest();
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(newest->path, "");
  EXPECT_TRUE(newest->passed_over.empty());
  const auto nothing = [](const CheckpointReader&) { return absl::OkStatus(); };
  EXPECT_EQ(UseNewestCheckpoint(temp_.Path("nowhere"), nothing)->path, "");
}

TEST_F(NewestTest, TheNewestIsUsedAndNoOther) {
  for (int64_t step : {4, 12, 8}) Write(step);
  const absl::StatusOr<NewestCheckpoint> newest = Newest();
  ASSERT_TRUE(newest.ok());
  EXPECT_EQ(newest->path, Path(12));
  EXPECT_TRUE(newest->passed_over.empty());
  EXPECT_THAT(used_, ElementsAre(12));
}

TEST_F(NewestTest, TheBestHasTheLowestLossOfAnEvaluation) {
  const auto best = [&] {
    used_.clear();
    return UseCheckpoint(WhichCheckpoint::kBest, temp_.path(), [&](const CheckpointReader& checkpoint) {
      used_.push_back(checkpoint.manifest().step);
      return answer_;
    });
  };
  EXPECT_EQ(best()->path, "");
  Write(2);
  EXPECT_EQ(best().status().code(), absl::StatusCode::kNotFound);
  const std::pair<int64_t, double> losses[] = {{3, 1.5}, {4, 1.25}, {5, 1.25}, {6, 2}};
  for (const auto& [step, loss] : losses) {
    state_.WriteCheckpoint(Path(step), {.ranks = 2, .step = step, .evaluation_loss = loss});
  }
  EXPECT_EQ(best()->path, Path(4));
  EXPECT_EQ(Newest()->path, Path(6));
  // A damaged one is passed over.
  std::filesystem::remove(ShardPath(Path(4), 0, 2));
  const absl::StatusOr<NewestCheckpoint> second = best();
  EXPECT_EQ(second->path, Path(5));
  EXPECT_THAT(second->passed_over, ElementsAre(HasSubstr(Path(4))));
  answer_ = absl::DataLossError("a chunk");
  EXPECT_THAT(std::string(best().status().message()),
              HasSubstr(temp_.path() + " that has the loss of an evaluation is damaged; nothing there was changed"));
  EXPECT_EQ(ParseWhichCheckpoint("best").value(), WhichCheckpoint::kBest);
  EXPECT_EQ(ParseWhichCheckpoint("last").status().message(), "found \"last\"; allowed: newest, best");
}

TEST_F(NewestTest, DamagedOnesArePassedOverWithTheirReasons) {
  for (int64_t step = 1; step <= 7; ++step) Write(step);
  fs::rename(Path(7), Path(9));
  fs::remove(JoinPath(Path(6), kManifestName));
  fs::remove(ShardPath(Path(5), 1, 2));
  // Flips a bit of the version. The checksum shows that this is damage, not another format.
  FlipBit(JoinPath(Path(4), kManifestName), 8 * 8);
  fs::resize_file(JoinPath(Path(3), kManifestName), int64_t{1} << 40);
  temp_.Write(CheckpointFolderName(8), "a file");
  const absl::StatusOr<NewestCheckpoint> newest = Newest();
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->path, Path(2));
  EXPECT_THAT(newest->passed_over, ElementsAre(absl::StrCat(Path(9), " holds step 7: the folder was renamed"),
                                               HasSubstr(Path(6)), HasSubstr(ShardPath(Path(5), 1, 2)),
                                               HasSubstr("MANIFEST: it is damaged"), HasSubstr(Path(3))));
  EXPECT_THAT(used_, ElementsAre(2));
}

TEST_F(NewestTest, DamageThatOnlyUsingShowsIsPassedOver) {
  for (int64_t step : {1, 2}) Write(step);
  answer_ = absl::DataLossError("a chunk");
  const absl::Status status = Newest().status();
  EXPECT_THAT(used_, ElementsAre(2, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  // It said only to copy one again, or to train anew, and not how, nor whether the folder is still as it was.
  EXPECT_EQ(status.message(),
            absl::StrCat("every checkpoint in ", temp_.path(),
                         " is damaged; nothing there was changed. If you have a whole copy of one, put it back into "
                         "this folder and call this again, or let a run resume from where the copy lies (train "
                         "--resume=COPY). Without a copy, train anew: in another run folder (train --set "
                         "telemetry.run_folder=FOLDER), or in this one, which removes its checkpoints (train "
                         "--overwrite). What is wrong (inspect_checkpoint --verify --checkpoint=CHECKPOINT names the "
                         "bytes):\na chunk\na chunk"));
}

TEST_F(NewestTest, AnErrorOfAnotherKindEndsTheSearch) {
  for (int64_t step : {1, 2}) Write(step);
  answer_ = absl::FailedPreconditionError("another model");
  EXPECT_EQ(Newest().status(), answer_);
  EXPECT_THAT(used_, ElementsAre(2));
}

// A run that a newer program continued never falls back to an older checkpoint unasked.
TEST_F(NewestTest, AnotherFormatVersionEndsTheSearch) {
  for (int64_t step : {1, 2}) Write(step);
  temp_.Write(CheckpointFolderName(2) + "/MANIFEST", Frame("SHALEMAN", 2, "new"));
  EXPECT_EQ(Newest().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(used_.empty());
}

}  // namespace
}  // namespace shale
