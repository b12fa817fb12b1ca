// Tests the store on a disk that fails at any operation, with any error, once or forever, and again during the cleanup.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"
#include "tests/engine/files/checkpoint/survival.h"
#include "tests/engine/files/io/faulty_file_system.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

constexpr int kErrors[] = {ENOSPC, EIO, EROFS, EDQUOT};
constexpr int64_t kRanks = 2, kElements = 300;  // kElements is per rank.

// Saves a checkpoint of `step` that holds `version` in its values and as its token count.
absl::Status Save(CheckpointStore& store, int64_t step, int64_t version) {
  static StagingBuffer& staging = *new StagingBuffer(kWriteStagingBytes);
  const std::vector<float> values(kRanks * kElements, static_cast<float>(version));
  const auto write = [&](const std::string& temporary) -> absl::StatusOr<std::vector<SavedFile>> {
    std::vector<SavedFile> files;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<PieceSource> pieces;
      for (const PartSpec& part : PartsOf(SavedValues::kFloat32, SavedValues::kFloat32, AdamWStates())) {
        pieces.push_back({.part = part.part,
                          .range = {rank * kElements, (rank + 1) * kElements},
                          .data = reinterpret_cast<const std::byte*>(values.data())});
      }
      SHALE_ASSIGN_OR_RETURN(
          SavedFile file, WriteShard(store.files(), temporary, rank, kRanks, pieces, CopyHostMemory, staging.span()));
      files.push_back(std::move(file));
    }
    return files;
  };
  Manifest manifest;
  manifest.step = step;
  manifest.tokens = version;
  manifest.data = {.samples_per_epoch = 5, .sequence_length = 8};
  manifest.parameters = {{"weight", {kRanks * kElements}}};
  return store.Save(std::move(manifest), write).status();
}

using Versions = std::map<int64_t, int64_t>;  // By step.

// Returns the versions of the visible checkpoints. Expects each of them to be whole.
Versions Look(const std::string& folder) {
  const absl::StatusOr<std::vector<int64_t>> steps = WholeCheckpoints(folder);
  EXPECT_TRUE(steps.ok()) << steps.status();
  Versions versions;
  for (int64_t step : steps.value_or(std::vector<int64_t>())) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(JoinPath(folder, CheckpointFolderName(step)));
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    if (manifest.ok()) versions[step] = manifest->tokens;
  }
  return versions;
}

struct Case {
  const char* name;
  int64_t step;  // The step to save where steps 2 and 4 are; two checkpoints are kept.
  Versions after;
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};
const Versions kBefore = {{2, 1}, {4, 1}};
const Case kCases[] = {{"ANewOne", 6, {{4, 1}, {6, 2}}}, {"AReplacedOne", 4, {{2, 1}, {4, 2}}}};

class StoreFaultTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto store = CheckpointStore::Open(temp_.Path("before"), {});
    ASSERT_TRUE(store.ok()) << store.status();
    for (int64_t step : {2, 4}) ASSERT_EQ(Save(**store, step, 1), absl::OkStatus());
    ASSERT_EQ(Look(temp_.Path("before")), kBefore);
  }
  std::string Folder() const { return temp_.Path("checkpoints"); }

  // Opens a copy of the folder that SetUp wrote, on a disk that will fail.
  void Reset(const Fault& fault) {
    store_ = nullptr;
    std::filesystem::remove_all(Folder());
    std::filesystem::copy(temp_.Path("before"), Folder(), std::filesystem::copy_options::recursive);
    files_ = std::make_unique<FaultyFileSystem>(fault);
    auto store = CheckpointStore::Open(Folder(), {.files = files_.get()});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  // Return whether the fault has occurred, and at which operation.
  bool Met(const Fault& fault) const { return files_->operations() >= fault.first; }
  std::string Operation(const Fault& fault) const { return Met(fault) ? files_->log()[fault.first - 1] : "none"; }

  // Opens the folder as the next process would, on a disk that works. Expects no leftovers and returns what is there.
  Versions Reopened() {
    store_ = nullptr;
    const auto store = CheckpointStore::Open(Folder(), {});
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(absl::StrJoin(Leftovers(Folder()), " "), "");
    return Look(Folder());
  }
  // Expects that nothing is lost, whatever failed and however often. Only a checkpoint that was to be pruned may be
  // missing, and only once the new checkpoint stands. Of a step that was being replaced, either the old or the new
  // version is there.
  static void ExpectNothingLost(const Versions& now) {
    const Case& c = GetParam();
    const bool stands = now.count(c.step) > 0 && now.at(c.step) == 2;
    for (const auto& [step, version] : kBefore) {
      if (now.count(step) == 0) {
        EXPECT_TRUE(stands && c.after.count(step) == 0) << "lost step " << step;
      } else if (step != c.step) {
        EXPECT_EQ(now.at(step), version);
      }
    }
    for (const auto& [step, version] : now) EXPECT_TRUE(step == c.step || kBefore.count(step) > 0) << step;
  }

  TempFolder temp_;
  std::unique_ptr<FaultyFileSystem> files_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_P(StoreFaultTest, OneFailureAtAnyOperationIsSaidAndChangesNothing) {
  const Case& c = GetParam();
  for (Fault::Kind kind : {Fault::Kind::kError, Fault::Kind::kDone}) {
    for (int error : kErrors) {
      for (int64_t n = 1;; n += FaultStride()) {
        const Fault fault = {.kind = kind, .first = n, .error_number = error};
        ASSERT_NO_FATAL_FAILURE(Reset(fault));
        const absl::Status status = Save(*store_, c.step, 2);
        SCOPED_TRACE(absl::StrCat(strerror(error), " at operation ", n, ": ", Operation(fault),
                                  kind == Fault::Kind::kDone ? ", although it was done" : ""));
        const Versions now = Look(Folder());
        if (!Met(fault)) {
          EXPECT_EQ(status, absl::OkStatus());
          EXPECT_EQ(now, c.after);
          break;
        }
        if (status.ok()) {
          // Besides the new checkpoint, at most one too many is there.
          for (const auto& [step, version] : c.after)
            EXPECT_EQ(now.count(step) > 0 ? now.at(step) : 0, version) << step;
        } else {
          const std::string message(status.message());
          EXPECT_TRUE(
              absl::StartsWith(message, absl::StrCat("cannot save the checkpoint of step ", c.step, ": cannot ")))
              << message;
          EXPECT_NE(message.find(strerror(error)), std::string::npos) << message;
          EXPECT_NE(message.find(Folder()), std::string::npos) << message;
          EXPECT_EQ(now, kBefore) << message;
          // The disk works again, and the same save succeeds without any repair.
          EXPECT_EQ(Save(*store_, c.step, 2), absl::OkStatus());
          EXPECT_EQ(Look(Folder()), c.after);
        }
        // The next save succeeds too, and prunes what may have been left.
        EXPECT_EQ(Save(*store_, 8, 3), absl::OkStatus());
        EXPECT_EQ(Look(Folder()), (Versions{{c.after.rbegin()->first, 2}, {8, 3}}));
        EXPECT_EQ(Reopened(), (Versions{{c.after.rbegin()->first, 2}, {8, 3}}));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST_P(StoreFaultTest, ADiskThatDiesAtAnyOperationTakesNothingWithIt) {
  const Case& c = GetParam();
  for (int64_t n = 1;; ++n) {
    const Fault fault = {.kind = Fault::Kind::kError, .first = n, .count = Fault::kForEver, .error_number = EIO};
    ASSERT_NO_FATAL_FAILURE(Reset(fault));
    const absl::Status status = Save(*store_, c.step, 2);
    SCOPED_TRACE(absl::StrCat("dead from operation ", n, ": ", Operation(fault)));
    if (!Met(fault)) break;
    // Looks at the folder as a process that only reads. A replaced checkpoint may be missing because it still has its
    // hidden name.
    for (const auto& [step, version] : Look(Folder())) EXPECT_TRUE(step == c.step || version == 1);
    EXPECT_FALSE(Save(*store_, 8, 3).ok());
    const Versions now = Reopened();
    ExpectNothingLost(now);
    if (status.ok()) {
      EXPECT_EQ(now.at(c.step), 2);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// A kill leaves the same files as a disk that dies at the same moment. So one process can try pairs of kills: one
// during a save, and one while the next process cleans up.
TEST_P(StoreFaultTest, DyingAgainWhileTheLeftoversAreRemovedLosesNothing) {
  const Case& c = GetParam();
  for (int64_t n = 1;; n += FaultStride()) {
    Fault fault = {.kind = Fault::Kind::kError, .first = n, .count = Fault::kForEver, .error_number = EIO};
    bool met = false;
    for (int64_t m = 1;; ++m) {
      ASSERT_NO_FATAL_FAILURE(Reset(fault));
      Save(*store_, c.step, 2).IgnoreError();
      met = Met(fault);
      store_ = nullptr;
      FaultyFileSystem again(
          {.kind = Fault::Kind::kError, .first = m, .count = Fault::kForEver, .error_number = EROFS});
      const absl::Status opened = CheckpointStore::Open(Folder(), {.files = &again}).status();
      SCOPED_TRACE(absl::StrCat("dead from operation ", n, ", ", Operation(fault), ", and from operation ", m,
                                " of opening it"));
      ExpectNothingLost(Reopened());
      if (::testing::Test::HasFailure()) return;
      if (opened.ok()) break;
      EXPECT_NE(std::string(opened.message()).find(strerror(EROFS)), std::string::npos) << opened;
    }
    if (!met) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Saves, StoreFaultTest, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shale
