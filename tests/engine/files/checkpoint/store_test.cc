#include "engine/files/checkpoint/store.h"

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/io/folder_lock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/checkpoint/sample_state.h"
#include "tests/engine/files/io/obey_permissions.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  std::string folder() const { return temp_.Path("checkpoints"); }
  std::string Path(int64_t step) const { return JoinPath(folder(), CheckpointFolderName(step)); }
  // Returns the path at which a crash leaves a folder, such as ".step-0000000004.tmp".
  std::string Hidden(int64_t step, absl::string_view ending) const {
    return JoinPath(folder(), absl::StrCat(".", CheckpointFolderName(step), ending));
  }

  std::unique_ptr<CheckpointStore> Open(int64_t keep_last = 100, int64_t keep_every = 0) const {
    auto store = CheckpointStore::Open(folder(), {.keep_last = keep_last, .keep_every = keep_every});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  void Save(CheckpointStore& store, int64_t step) const {
    EXPECT_EQ(state_.Save(store, {.ranks = 2, .step = step}), Path(step));
  }
  std::vector<int64_t> Steps() const {
    std::vector<int64_t> steps;
    const absl::StatusOr<std::vector<CheckpointPath>> list = ListCheckpoints(folder());
    EXPECT_TRUE(list.ok()) << list.status();
    for (const CheckpointPath& checkpoint : *list) {
      EXPECT_EQ(checkpoint.path, Path(checkpoint.step));
      steps.push_back(checkpoint.step);
    }
    return steps;
  }
  // Returns all names in the folder, including the hidden ones.
  // Returns the names in the folder, but for the file of the lock that a store holds.
  std::vector<std::string> Names() const {
    std::vector<std::string> names = ListFolder(folder()).value();
    std::erase_if(names, FolderLock::IsLockFile);
    return names;
  }

  TempFolder temp_;
  SampleState state_ = SampleState({{"w", {3, 5}}, {"b", {7}}}, 1);
};

TEST_F(StoreTest, WhatIsSavedIsRead) {
  const auto store = Open();
  Save(*store, 12);
  EXPECT_THAT(Names(), ElementsAre("step-0000000012"));
  const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(Path(12));
  ASSERT_TRUE(reader.ok()) << reader.status();
  Manifest expected = state_.ManifestOf({.ranks = 2, .step = 12});
  expected.ranks = 2;
  expected.files = reader->manifest().files;
  EXPECT_EQ(reader->manifest(), expected);
  EXPECT_EQ(store->folder(), folder());
}

TEST_F(StoreTest, WhatCannotBeExaminedIsNotAbsent) {
  // Regression: every error of lstat counted as absence, so the list was empty and a run would have started from
  // scratch.
  const auto store = Open();
  Save(*store, 4);
  // The names in the folder can be read, and nothing in it can be examined.
  ASSERT_EQ(chmod(folder().c_str(), 0400), 0);
  {
    const ObeyPermissions obey;
    const absl::Status status = ListCheckpoints(folder()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()), HasSubstr("cannot examine " + Path(4)));
  }
  ASSERT_EQ(chmod(folder().c_str(), 0700), 0);
  EXPECT_THAT(Steps(), ElementsAre(4));
}

TEST_F(StoreTest, TheListIsNewestFirstAndOfCheckpointsOnly) {
  EXPECT_TRUE(Steps().empty());  // The folder does not exist yet.
  for (const char* name :
       {"step-0000000007", "step-0000000100", "step-0000000020", "step-12345678901", "step-0000000000"}) {
    fs::create_directories(JoinPath(folder(), name));
  }
  for (const char* name : {"step-7", "step-00000000007", "step-", "step--000000007", "step-+000000007",
                           "step- 000000008", "step-000000000x", ".step-0000000009.tmp", "step-0000000009.tmp",
                           "Step-0000000009", "other", "step-99999999999999999999"}) {
    fs::create_directories(JoinPath(folder(), name));
  }
  // Neither files nor links are checkpoints.
  temp_.Write("checkpoints/step-0000000055", "");
  fs::create_directory_symlink(temp_.path(), JoinPath(folder(), "step-0000000066"));
  EXPECT_THAT(Steps(), ElementsAre(12345678901, 100, 20, 7, 0));
  // A file stands in place of the folder.
  temp_.Write("file", "");
  EXPECT_FALSE(ListCheckpoints(temp_.Path("file")).ok());
}

TEST_F(StoreTest, KeepsTheLastAndEveryMth) {
  const auto store = Open(/*keep_last=*/2, /*keep_every=*/5);
  for (int64_t step = 1; step <= 12; ++step) {
    Save(*store, step);
    std::vector<int64_t> expected;
    for (int64_t s = step; s >= 1; --s) {
      if (s > step - 2 || s % 5 == 0) expected.push_back(s);
    }
    EXPECT_EQ(Steps(), expected);
  }
  EXPECT_EQ(Names().size(), 4);
}

TEST_F(StoreTest, KeepsTheBestBesidesTheLast) {
  const auto store = CheckpointStore::Open(folder(), {.keep_last = 1, .keep_best = true});
  ASSERT_TRUE(store.ok()) << store.status();
  const std::optional<double> losses[] = {2.5, 2.25, std::nullopt, 2.25, 2.125, 3};
  const std::vector<std::vector<int64_t>> kept = {{1}, {2}, {3, 2}, {4, 2}, {5}, {6, 5}};
  for (int64_t step = 1; step <= 6; ++step) {
    state_.Save(**store, {.ranks = 2, .step = step, .evaluation_loss = losses[step - 1]});
    EXPECT_EQ(Steps(), kept[step - 1]);
  }
  // A damaged one is no longer the best.
  FlipBit(JoinPath(Path(5), kManifestName), 300);
  state_.Save(**store, {.ranks = 2, .step = 7, .evaluation_loss = 4});
  EXPECT_THAT(Steps(), ElementsAre(7, 6, 5));
}

TEST_F(StoreTest, DamagedOnesNeitherCountNorGo) {
  const auto store = Open(/*keep_last=*/2);
  Save(*store, 1);
  Save(*store, 2);
  FlipBit(JoinPath(Path(2), kManifestName), 300);
  Save(*store, 3);
  EXPECT_THAT(Steps(), ElementsAre(3, 2, 1));
  fs::remove(ShardPath(Path(3), 0, 2));
  Save(*store, 4);
  EXPECT_THAT(Steps(), ElementsAre(4, 3, 2, 1));
  Save(*store, 5);
  EXPECT_THAT(Steps(), ElementsAre(5, 4, 3, 2));
}

// There are later checkpoints if only reading shows that the newest one is damaged, and the run continues from the one
// before.
TEST_F(StoreTest, LaterOnesNeitherCountNorGo) {
  const auto store = Open(/*keep_last=*/1);
  Save(*store, 10);
  Save(*store, 6);
  EXPECT_THAT(Steps(), ElementsAre(10, 6));
  Save(*store, 7);
  EXPECT_THAT(Steps(), ElementsAre(10, 7));
  Save(*store, 10);
  EXPECT_THAT(Steps(), ElementsAre(10));
}

TEST_F(StoreTest, WhatIsNoCheckpointOfOursStays) {
  auto store = Open(/*keep_last=*/1);
  fs::create_directories(temp_.Path("elsewhere"));
  temp_.Write("elsewhere/precious", "data");
  temp_.Write("checkpoints/notes.txt", "mine");
  temp_.Write("checkpoints/.step-0000000001.tmp", "a file");
  fs::create_directories(JoinPath(folder(), ".step-mine.tmp"));
  fs::create_directories(JoinPath(folder(), ".hidden"));
  // Removing the files behind a link would remove what lies elsewhere.
  for (const char* link : {"step-0000000001", ".step-0000000002.tmp", ".step-0000000003.trash"}) {
    fs::create_directory_symlink(temp_.Path("elsewhere"), JoinPath(folder(), link));
  }
  Save(*store, 5);
  Save(*store, 6);
  store = nullptr;
  store = Open(1);
  EXPECT_THAT(Names(), ElementsAre(".hidden", ".step-0000000001.tmp", ".step-0000000002.tmp", ".step-0000000003.trash",
                                   ".step-mine.tmp", "notes.txt", "step-0000000001", "step-0000000006"));
  EXPECT_TRUE(fs::exists(temp_.Path("elsewhere/precious")));
}

// Regression: a link in the place of a checkpoint, or of what a save leaves for a moment, lost the files it led to.
TEST_F(StoreTest, ASaveRemovesLinksInItsWayAndNothingBehindThem) {
  fs::create_directories(temp_.Path("elsewhere"));
  for (const char* name : {"precious", "MANIFEST"}) temp_.Write(absl::StrCat("elsewhere/", name), "data");
  const auto store = Open(/*keep_last=*/1);
  for (int64_t step = 1; step <= 4; ++step) {
    for (const std::string& link : {Path(step), Hidden(step, ".tmp"), Hidden(step, ".replaced"), Hidden(step, ".trash"),
                                    Hidden(step - 1, ".trash")}) {
      if (!fs::is_symlink(link)) fs::create_directory_symlink(temp_.Path("elsewhere"), link);
    }
    EXPECT_THAT(ListLinkedCheckpoints(folder()).value(), ElementsAre(Path(step)));
    Save(*store, step);
    EXPECT_THAT(Steps(), ElementsAre(step));
    EXPECT_TRUE(ListLinkedCheckpoints(folder())->empty());
    for (const char* name : {"precious", "MANIFEST"}) EXPECT_TRUE(fs::exists(temp_.Path("elsewhere/") + name)) << name;
  }
}

TEST_F(StoreTest, OpeningRemovesWhatCrashesLeft) {
  Save(*Open(), 4);
  fs::copy(Path(4), Hidden(8, ".tmp"));
  fs::copy(Path(4), Hidden(2, ".trash"));
  fs::create_directory(Hidden(9, ".tmp"));
  // The save that replaced step 4 ended before it removed the old checkpoint.
  fs::copy(Path(4), Hidden(4, ".replaced"));
  const auto store = Open();
  EXPECT_THAT(Names(), ElementsAre("step-0000000004"));
}

TEST_F(StoreTest, OpeningRestoresWhatWasToBeReplaced) {
  Save(*Open(), 4);
  fs::rename(Path(4), Hidden(4, ".replaced"));
  fs::create_directory(Hidden(4, ".tmp"));
  const auto store = Open();
  EXPECT_THAT(Names(), ElementsAre("step-0000000004"));
  EXPECT_TRUE(CheckpointReader::Open(Path(4)).ok());
}

TEST_F(StoreTest, SavingAStepAgainReplacesIt) {
  const auto store = Open();
  Save(*store, 4);
  state_ = SampleState({{"other", {9}}}, 2);
  Save(*store, 4);
  EXPECT_THAT(Names(), ElementsAre("step-0000000004"));
  EXPECT_EQ(CheckpointReader::Open(Path(4))->manifest().parameters[0].name, "other");
}

TEST_F(StoreTest, ASaveThatFailsLeavesWhatWasThere) {
  const auto store = Open();
  Save(*store, 4);
  const auto fail = [&](const std::string& temporary) -> absl::StatusOr<std::vector<SavedFile>> {
    state_.WriteShards(temporary, {.ranks = 2});
    return absl::ResourceExhaustedError("the disk is full");
  };
  for (int64_t step : {4, 5}) {
    const absl::Status status = store->Save(state_.ManifestOf({.step = step}), fail).status();
    EXPECT_EQ(status, absl::ResourceExhaustedError(
                          absl::StrCat("cannot save the checkpoint of step ", step, ": the disk is full")));
    EXPECT_THAT(Names(), ElementsAre("step-0000000004"));
  }
  EXPECT_TRUE(CheckpointReader::Open(Path(4)).ok());
}

TEST_F(StoreTest, AManifestThatNobodyCouldReadIsNotSaved) {
  const auto store = Open();
  const auto write = [&](const std::string& temporary) -> absl::StatusOr<std::vector<SavedFile>> {
    return state_.WriteShards(temporary, {.ranks = 2});
  };
  Manifest manifest = state_.ManifestOf({.step = 5});
  manifest.parameters[0].name = "a\nb";
  const absl::Status status = store->Save(manifest, write).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the manifest could not be read back"));
  EXPECT_TRUE(Names().empty());
}

TEST_F(StoreTest, TwoWritersNeverShareAFolder) {
  auto store = Open();
  const absl::Status second = CheckpointStore::Open(folder(), {}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr(folder()));
  Save(*store, 1);  // The first writer still works.
  store = nullptr;
  EXPECT_NE(Open(), nullptr);
}

TEST_F(StoreTest, AFolderThatStayedEmptyIsRemovedByWhoMadeIt) {
  Open().reset();
  EXPECT_FALSE(fs::exists(folder()));
  fs::create_directory(folder());
  Open().reset();
  EXPECT_TRUE(fs::exists(folder()));
  EXPECT_FALSE(CheckpointStore::Open(temp_.Write("file", ""), {}).ok());
}

}  // namespace
}  // namespace shale
