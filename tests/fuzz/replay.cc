#include "tests/fuzz/replay.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace shale::testing {
namespace {

struct Target {
  std::string name;
  FuzzFunction run;
};

std::vector<Target>& Targets() {
  static std::vector<Target>* const targets = new std::vector<Target>();
  return *targets;
}

// Copies the bytes into a heap block of exactly their size, so that a sanitizer sees a read beyond the end.
void RunTarget(const Target& target, const std::string& bytes) {
  const std::unique_ptr<uint8_t[]> data(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), data.get());
  EXPECT_EQ(target.run(data.get(), bytes.size()), 0);
}

struct Input {
  std::string name, bytes;
};

// Returns the inputs of a text that tests/fuzz/corpus.py describes.
std::vector<Input> ReadCorpus(const std::string& path) {
  std::vector<Input> inputs;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  for (std::string line; std::getline(file, line);) {
    absl::string_view escaped = line;
    if (!absl::StartsWith(escaped, "  \"")) {
      inputs.push_back({.name = std::move(line)});
      continue;
    }
    std::string bytes, error;
    escaped = escaped.substr(3, escaped.size() - 4);
    EXPECT_TRUE(!inputs.empty() && absl::CUnescape(escaped, &bytes, &error)) << path << ": " << line << ": " << error;
    if (!inputs.empty()) inputs.back().bytes += bytes;
  }
  return inputs;
}

class Corpora : public ::testing::TestWithParam<Target> {};

TEST_P(Corpora, EveryInputKeepsTheProperties) {
  const std::string path = "tests/fuzz/corpus/" + GetParam().name + ".txt";
  const std::vector<Input> inputs = ReadCorpus(path);
  ASSERT_FALSE(inputs.empty()) << path;
  RunTarget(GetParam(), "");
  size_t total_bytes = 0;
  for (const Input& input : inputs) {
    std::fprintf(stderr, "%s: %s\n", GetParam().name.c_str(),
                 input.name.c_str());  // A failed property ends the process.
    RunTarget(GetParam(), input.bytes);
    total_bytes += input.bytes.size();
  }
  EXPECT_LT(total_bytes, 100'000) << "a corpus lies in the repository: keep what reaches new code, and that short";
}

INSTANTIATE_TEST_SUITE_P(All, Corpora, ::testing::ValuesIn(Targets()),
                         [](const ::testing::TestParamInfo<Target>& info) { return info.param.name; });

}  // namespace

bool AddFuzzTarget(absl::string_view name, FuzzFunction run) {
  Targets().push_back({.name = std::string(name), .run = run});
  return true;
}

}  // namespace shale::testing
