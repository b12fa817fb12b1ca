// What the search chooses for real jobs, which people have read and found sensible. A change of the search, of the
// clock or of a profile shows here; if the new choices are better, renew the file with the command of its first line.
#include "tests/engine/plan/search/choices.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

class ChoicesTest : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(ChoicesTest, AreThoseOfTheGoldenFile) {
  std::ifstream file("tests/engine/plan/search/golden/choices.txt");
  const std::string golden((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto& [job, machine] = GetParam();
  const size_t begin = golden.find(absl::StrCat("\n", HeadOf(job, machine), "\n"));
  ASSERT_NE(begin, golden.npos);
  const absl::StatusOr<std::string> choices = ChoicesOf(job, machine);
  ASSERT_TRUE(choices.ok()) << choices.status();
  EXPECT_EQ(golden.substr(begin + 1, golden.find("\n\n", begin) - begin), *choices);
}

std::string NameOf(const ::testing::TestParamInfo<std::pair<std::string, std::string>>& info) {
  return absl::StrCat(info.param.first, "_on_", info.param.second);
}

INSTANTIATE_TEST_SUITE_P(Jobs, ChoicesTest, ::testing::ValuesIn(SearchedJobs()), NameOf);

}  // namespace
}  // namespace shale
