// Replaces libFuzzer where it is not available: runs the target once for each input of its corpus, and once for an
// empty input.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string corpus;  // Path of a text of inputs; tests/fuzz/corpus.py describes it.

// Copies the bytes into a heap block of exactly their size, so that a sanitizer sees a read beyond the end.
void RunTarget(const std::string& bytes) {
  const std::unique_ptr<uint8_t[]> data(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), data.get());
  EXPECT_EQ(LLVMFuzzerTestOneInput(data.get(), bytes.size()), 0);
}

struct Input {
  std::string name, bytes;
};

std::vector<Input> ReadCorpus() {
  std::vector<Input> inputs;
  std::ifstream file(corpus, std::ios::binary);
  EXPECT_TRUE(file.good()) << corpus;
  for (std::string line; std::getline(file, line);) {
    absl::string_view escaped = line;
    if (!absl::StartsWith(escaped, "  \"")) {
      inputs.push_back({.name = std::move(line)});
      continue;
    }
    std::string bytes, error;
    escaped = escaped.substr(3, escaped.size() - 4);
    EXPECT_TRUE(!inputs.empty() && absl::CUnescape(escaped, &bytes, &error)) << corpus << ": " << line << ": " << error;
    if (!inputs.empty()) inputs.back().bytes += bytes;
  }
  return inputs;
}

TEST(Corpus, EveryInputKeepsTheProperties) {
  const std::vector<Input> inputs = ReadCorpus();
  ASSERT_FALSE(inputs.empty()) << corpus;
  RunTarget("");
  size_t total_bytes = 0;
  for (const Input& input : inputs) {
    std::fprintf(stderr, "%s\n", input.name.c_str());  // A failed property ends the process.
    RunTarget(input.bytes);
    total_bytes += input.bytes.size();
  }
  EXPECT_LT(total_bytes, 100'000) << "a corpus lies in the repository: keep what reaches new code, and that short";
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS\n", argv[0]);
    return 2;
  }
  corpus = argv[1];
  return RUN_ALL_TESTS();
}
