#include "engine/files/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

namespace fs = std::filesystem;

TEST(FolderLockTest, OneHolderAtATime) {
  const TempFolder temp;
  {
    const absl::StatusOr<FolderLock> first = FolderLock::Take(temp.Path("a/b"), "it is held");
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(FolderLock::Take(temp.Path("a/b"), "it is held").status(), absl::FailedPreconditionError("it is held"));
    EXPECT_TRUE(fs::exists(temp.Path("a/b")));
  }
  EXPECT_TRUE(FolderLock::Take(temp.Path("a/b"), "it is held").ok());
}

TEST(FolderLockTest, AFolderThatStayedEmptyIsRemovedByWhoMadeIt) {
  const TempFolder temp;
  { ASSERT_TRUE(FolderLock::Take(temp.Path("new"), "").ok()); }
  EXPECT_FALSE(fs::exists(temp.Path("new")));
  fs::create_directory(temp.Path("mine"));
  { ASSERT_TRUE(FolderLock::Take(temp.Path("mine"), "").ok()); }
  EXPECT_TRUE(fs::exists(temp.Path("mine")));
  {
    ASSERT_TRUE(FolderLock::Take(temp.Path("used"), "").ok());
    const absl::StatusOr<FolderLock> lock = FolderLock::Take(temp.Path("used"), "");
    temp.Write("used/file", "x");
  }
  EXPECT_TRUE(fs::exists(temp.Path("used/file")));
}

// Each holder removes the folder while others are about to lock it.
TEST(FolderLockTest, NobodyHoldsAFolderThatIsGone) {
  const TempFolder temp;
  std::atomic<int> holders = 0, taken = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const absl::StatusOr<FolderLock> lock = FolderLock::Take(temp.Path("x"), "held");
        if (!lock.ok()) continue;
        ++taken;
        EXPECT_EQ(holders.fetch_add(1), 0);
        EXPECT_TRUE(fs::exists(temp.Path("x")));
        holders.fetch_sub(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(taken, 1);
}

// Another host that shares the folder has no part in the lock on the folder itself, only in the one on the file.
TEST(FolderLockTest, AnotherHostHoldsTheFileOnly) {
  const TempFolder temp;
  fs::create_directory(temp.Path("x"));
  temp.Write("x/.lock", "");  // As a holder leaves it that crashed.
  const int file = open(temp.Path("x/.lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  EXPECT_EQ(FolderLock::Take(temp.Path("x"), "it is held").status(), absl::FailedPreconditionError("it is held"));
  close(file);
  {
    const absl::StatusOr<FolderLock> lock = FolderLock::Take(temp.Path("x"), "it is held");
    ASSERT_TRUE(lock.ok()) << lock.status();
    fs::rename(temp.Path("x"), temp.Path("y"));
  }
  EXPECT_TRUE(fs::is_empty(temp.Path("y")));
}

TEST(FolderLockTest, WhatIsNoFolderIsNamed) {
  const TempFolder temp;
  temp.Write("file", "x");
  EXPECT_THAT(std::string(FolderLock::Take(temp.Path("file"), "").status().message()),
              ::testing::HasSubstr(temp.Path("file") + ": Not a directory"));
}

}  // namespace
}  // namespace shale
