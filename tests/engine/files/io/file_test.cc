#include "engine/files/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "engine/files/io/checksums.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/obey_permissions.h"
#include "tests/engine/files/io/process_resources.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(JoinPathTest, PutsOneSlashBetween) {
  EXPECT_EQ(JoinPath("runs/a", "plan.txt"), "runs/a/plan.txt");
  EXPECT_EQ(JoinPath("runs/", "plan.txt"), "runs/plan.txt");
  EXPECT_EQ(JoinPath("", "plan.txt"), "plan.txt");
  EXPECT_EQ(JoinPath("runs", "/tmp/plan.txt"), "/tmp/plan.txt");
}

TEST(ReadFileTest, ReturnsAllBytes) {
  const TempFolder folder;
  const std::string bytes("a\0b\nc", 5);
  EXPECT_EQ(ReadFile(folder.Write("x", bytes), 5).value(), bytes);
  EXPECT_EQ(ReadFile(folder.Write("empty", ""), 0).value(), "");
}

TEST(ReadFileTest, RefusesMoreThanTheCap) {
  const TempFolder folder;
  const absl::Status status = ReadFile(folder.Write("x", "12345"), 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(status), HasSubstr("x has 5 bytes; at most 4 are read"));
}

TEST(ReadFileTest, SaysWhyItCannot) {
  const TempFolder folder;
  const absl::Status missing = ReadFile(folder.Path("none"), 10).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(missing), AllOf(HasSubstr("cannot open"), HasSubstr("/none: No such file")));
  EXPECT_THAT(Message(ReadFile(folder.path(), 10).status()), HasSubstr("is not a regular file"));
}

TEST(ReadFileTest, DoesNotWaitForTheWriterOfAPipe) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(Message(ReadFile(folder.Path("pipe"), 10).status()), HasSubstr("is not a regular file"));
}

TEST(InputFileTest, ReportsAFileThatBecameShorter) {
  const TempFolder folder;
  const std::string path = folder.Write("x", "0123456789");
  const InputFile file = InputFile::Open(path).value();
  ASSERT_EQ(truncate(path.c_str(), 6), 0);
  char buffer[10];
  EXPECT_TRUE(file.ReadAt(2, buffer, 4).ok());
  EXPECT_EQ(std::string(buffer, 4), "2345");
  const absl::Status status = file.ReadAt(2, buffer, 8);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), HasSubstr("ends at byte 6; it had 10"));
}

TEST(InputFileTest, ClosesItsDescriptorHoweverItEnds) {
  const TempFolder folder;
  const std::string path = folder.Write("x", "0123456789");
  const int64_t before = OpenDescriptors();
  {
    InputFile first = InputFile::Open(path).value(), second = InputFile::Open(path).value();
    EXPECT_EQ(OpenDescriptors(), before + 2);
    first = std::move(second);
    EXPECT_EQ(OpenDescriptors(), before + 1);
    const InputFile third = std::move(first);
    EXPECT_EQ(OpenDescriptors(), before + 1);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(WriteFileDurablyTest, ReplacesWhole) {
  const TempFolder folder;
  const std::string path = folder.Write("x", "a long old content");
  ASSERT_TRUE(WriteFileDurably(path, "new").ok());
  EXPECT_EQ(ReadFile(path, 100).value(), "new");
  EXPECT_EQ(folder.CountEntries(), 1);
}

TEST(WriteFileDurablyTest, WritesIntoTheWorkingFolder) {
  const TempFolder folder;
  ASSERT_EQ(chdir(folder.path().c_str()), 0);
  ASSERT_TRUE(WriteFileDurably("x", "here").ok());
  EXPECT_EQ(ReadFile(folder.Path("x"), 100).value(), "here");
}

TEST(WriteFileDurablyTest, SaysWhichFolderIsMissing) {
  const TempFolder folder;
  const absl::Status status = WriteFileDurably(folder.Path("none/x"), "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("cannot write"), HasSubstr("none/x: No such file")));
}

TEST(WriteFileDurablyTest, SaysThatAFolderIsNotForWriting) {
  const TempFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  const ObeyPermissions obey;
  const absl::Status status = WriteFileDurably(folder.Path("x"), "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(status), AllOf(HasSubstr("cannot write"), HasSubstr("/x: Permission denied")));
  EXPECT_THAT(Message(MakeFolders(folder.Path("run"))), HasSubstr("/run: Permission denied"));
}

TEST(WriteFileDurablyTest, SaysThatTheFileIsNewIfOnlyTheFlushFailed) {
  // Regression: the error read as if the old contents were still there.
  const TempFolder folder;
  const std::string path = folder.Write("x", "old");
  // The folder can be changed but not opened, and a flush opens it.
  ASSERT_EQ(chmod(folder.path().c_str(), 0300), 0);
  {
    const ObeyPermissions obey;
    const absl::Status status = WriteFileDurably(path, "new");
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(Message(status), HasSubstr("/x has its new contents, but a crash of the machine may undo that: "));
  }
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  EXPECT_EQ(ReadFile(path, 100).value(), "new");
}

TEST(WriteFileDurablyTest, LeavesNothingBehindWhenItFails) {
  const TempFolder folder;
  ASSERT_EQ(mkdir(folder.Path("x").c_str(), 0700), 0);
  EXPECT_THAT(Message(WriteFileDurably(folder.Path("x"), "new")), HasSubstr("cannot replace"));
  EXPECT_EQ(folder.CountEntries(), 1);
}

TEST(DurableFileTest, IsInvisibleUntilCommitted) {
  const TempFolder folder;
  const std::string path = folder.Write("x", "old");
  {
    DurableFile abandoned = DurableFile::Create(path).value();
    ASSERT_TRUE(abandoned.WriteAt(0, "half").ok());
    EXPECT_EQ(ReadFile(path, 100).value(), "old");
  }
  EXPECT_EQ(ReadFile(path, 100).value(), "old");
  EXPECT_EQ(folder.CountEntries(), 1);

  DurableFile file = DurableFile::Create(path).value();
  ASSERT_TRUE(file.WriteAt(3, "def").ok());
  ASSERT_TRUE(file.WriteAt(0, "abc").ok());
  ASSERT_TRUE(file.Commit().ok());
  EXPECT_EQ(ReadFile(path, 100).value(), "abcdef");
}

TEST(MakeFoldersTest, MakesAllThatAreMissing) {
  const TempFolder folder;
  EXPECT_TRUE(MakeFolders(folder.Path("a/b//c/")).ok());
  EXPECT_TRUE(std::filesystem::is_directory(folder.Path("a/b/c")));
  EXPECT_TRUE(MakeFolders(folder.Path("a/b/c")).ok());
}

TEST(MakeFoldersTest, SaysWhatStandsInTheWay) {
  const TempFolder folder;
  folder.Write("file", "");
  EXPECT_THAT(Message(MakeFolders(folder.Path("file/b"))),
              AllOf(HasSubstr("cannot make folder"), HasSubstr("/file: Not a directory")));
  EXPECT_FALSE(MakeFolders("").ok());
}

// Regression: a text whose time alone had changed ended a run.
TEST(FileContentTest, AFileIsKnownByItsBytes) {
  const TempFolder folder;
  const std::string path = folder.Write("a", "0123456789");
  const InputFile file = InputFile::Open(path).value();
  const FileContent content(file.identity(), 2, 8, Crc64OfFile(file, 2, 8).value());
  const auto touch = [&](int64_t seconds) {
    const timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = seconds}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  touch(5);
  EXPECT_TRUE(content.Check(file).ok());
  const std::string copy = folder.Write("b", "xx23456789");
  EXPECT_TRUE(content.Check(InputFile::Open(copy).value()).ok()) << "bytes that do not count may differ";
  for (const char* other : {"01234567890", "0123456798"}) {
    folder.Write("a", other);
    touch(6);
    EXPECT_EQ(content.Check(file).code(), absl::StatusCode::kDataLoss) << other;
  }
  folder.Write("a", "0123456789");
  touch(7);
  EXPECT_TRUE(content.Check(file).ok());
}

}  // namespace
}  // namespace shale
