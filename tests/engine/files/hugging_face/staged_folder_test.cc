#include "engine/files/hugging_face/staged_folder.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/obey_permissions.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

TEST(StagedFolderTest, AppearsWhenItIsCommitted) {
  const TempFolder temp;
  absl::StatusOr<StagedFolder> folder = StagedFolder::Create(temp.Path("target"));
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_FALSE(std::filesystem::exists(temp.Path("target")));
  EXPECT_EQ(folder->Commit(), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_directory(temp.Path("target")));
  EXPECT_EQ(temp.CountEntries(), 1);
}

TEST(StagedFolderTest, SaysThatTheTargetIsThereIfOnlyTheFlushFailed) {
  // Regression: the error read as if nothing had been exported.
  const TempFolder temp;
  absl::StatusOr<StagedFolder> folder = StagedFolder::Create(temp.Path("target"));
  ASSERT_TRUE(folder.ok()) << folder.status();
  // The parent can be changed but not opened, and a flush opens it.
  ASSERT_EQ(chmod(temp.path().c_str(), 0300), 0);
  {
    const ObeyPermissions obey;
    const absl::Status status = folder->Commit();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/target is complete, but a crash of the machine may remove it: "));
  }
  ASSERT_EQ(chmod(temp.path().c_str(), 0700), 0);
  EXPECT_TRUE(std::filesystem::is_directory(temp.Path("target")));
}

}  // namespace
}  // namespace shale
