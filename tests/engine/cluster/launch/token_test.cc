#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/cluster/launch/credentials.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

std::string File(const std::string& name, const std::string& text, mode_t mode) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path) << text;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

TEST(TokenTest, ComesFromAFileOrTheEnvironment) {
  EXPECT_EQ(ReadToken({}).value(), "");
  EXPECT_EQ(ReadToken({{"SHALE_TOKEN", "abc"}}).value(), "abc");
  EXPECT_EQ(ReadToken({{"SHALE_TOKEN_FILE", File("token", " abc \nnot this\n", 0600)}}).value(), "abc");
}

TEST(TokenTest, RefusesWhatIsNoSecret) {
  const auto refusal = [](const Variables& variables) { return std::string(ReadToken(variables).status().message()); };
  const std::string file = File("other", "abc\n", 0600);
  EXPECT_THAT(refusal({{"SHALE_TOKEN_FILE", file}, {"SHALE_TOKEN", "abc"}}), HasSubstr("unset one of them"));
  EXPECT_THAT(refusal({{"SHALE_TOKEN_FILE", File("open", "abc\n", 0644)}}), HasSubstr("chmod 600 it"));
  EXPECT_THAT(refusal({{"SHALE_TOKEN_FILE", File("empty", "\nabc\n", 0600)}}), HasSubstr("no token in"));
  EXPECT_EQ(ReadToken({{"SHALE_TOKEN_FILE", "/no/such/file"}}).status().code(), absl::StatusCode::kNotFound);
}

// Regression: a launcher whose own variable was missing gave an empty token, and the job ran open to everybody.
TEST(TokenTest, AnEmptyVariableIsNoToken) {
  for (const char* name : {"SHALE_TOKEN", "SHALE_TOKEN_FILE"}) {
    for (const char* value : {"", " ", "\n"}) {
      EXPECT_THAT(std::string(ReadToken({{name, value}}).status().message()),
                  HasSubstr(absl::StrCat(name, " is set and empty")));
    }
  }
}

// Regression: only whether others can read it was looked at.
TEST(TokenTest, RefusesAFileThatOthersCanChoose) {
  const auto refusal = [](const std::string& file) {
    return std::string(ReadToken({{"SHALE_TOKEN_FILE", file}}).status().message());
  };
  for (const mode_t mode : {0620, 0602, 0622}) {
    EXPECT_THAT(refusal(File("written", "abc\n", mode)), HasSubstr("other users can write the token"));
  }
  const std::string folder = ::testing::TempDir() + "folder";
  std::filesystem::create_directories(folder);
  const std::string inside = File("folder/inside", "abc\n", 0600);
  const std::string link = ::testing::TempDir() + "link", linked = File("linked", "abc\n", 0600);
  std::filesystem::remove(link);
  std::filesystem::create_symlink(inside, link);
  std::filesystem::remove(folder + "/link");
  std::filesystem::create_symlink(linked, folder + "/link");
  EXPECT_EQ(chmod(folder.c_str(), 0777), 0);
  for (const std::string& file : {inside, link, folder + "/link"}) {
    EXPECT_THAT(refusal(file), HasSubstr("other users can replace the token"));
  }
  for (const mode_t mode : {01777, 0775, 0700}) {  // As /tmp, as a folder of a group, and as one of a user.
    EXPECT_EQ(chmod(folder.c_str(), mode), 0);
    for (const std::string& file : {inside, link, folder + "/link"}) EXPECT_EQ(refusal(file), "") << mode;
  }
  if (geteuid() == 0 && chown(inside.c_str(), 12345, 12345) == 0) {
    EXPECT_THAT(refusal(inside), HasSubstr("make a file of your own"));
  }
}

TEST(TokenTest, SameTokenComparesAllBytes) {
  EXPECT_TRUE(SameToken("", ""));
  EXPECT_TRUE(SameToken("abc", "abc"));
  for (const char* other : {"", "a", "ab", "abd", "abcd", "abcabc"}) {
    EXPECT_FALSE(SameToken("abc", other)) << other;
    EXPECT_FALSE(SameToken(other, "abc")) << other;
  }
}

}  // namespace
}  // namespace shale
