// Replaces libFuzzer where it is not available: runs the target once for each file of its corpus, and once for an empty
// input.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string corpus;  // Path of the folder.

// Copies the bytes into a heap block of exactly their size, so that a sanitizer sees a read beyond the end.
void RunTarget(const std::string& bytes) {
  const std::unique_ptr<uint8_t[]> data(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), data.get());
  EXPECT_EQ(LLVMFuzzerTestOneInput(data.get(), bytes.size()), 0);
}

TEST(Corpus, EveryInputKeepsTheProperties) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) paths.push_back(entry.path());
  ASSERT_FALSE(paths.empty()) << corpus;
  std::sort(paths.begin(), paths.end());
  RunTarget("");
  size_t total_bytes = 0;
  for (const std::filesystem::path& path : paths) {
    std::fprintf(stderr, "%s\n", path.c_str());  // A failed property ends the process.
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    ASSERT_TRUE(file.good());
    RunTarget(bytes);
    total_bytes += bytes.size();
  }
  EXPECT_LT(total_bytes, 100'000) << "a corpus lies in the repository: keep what reaches new code, and that short";
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  corpus = argv[1];
  return RUN_ALL_TESTS();
}
