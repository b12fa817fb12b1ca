#include "engine/launch/token.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

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
