// Tokenizer files are found by name, and only in their folder or the hub's cache.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/hugging_face/folder_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/hugging_face/models.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const std::string& folder) {
  const absl::StatusOr<std::vector<HfFile>> files = ListCopiedHfFiles(folder);
  EXPECT_TRUE(files.ok()) << files.status();
  std::vector<std::string> names;
  if (!files.ok()) return names;
  for (const HfFile& file : *files) names.push_back(file.name);
  return names;
}

TEST(CopiedFilesTest, AreTheTokenizerAndTheGenerationConfig) {
  const TempFolder folder;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json", "generation_config.json",
                           "model.safetensors", "config.json", "my_tokenizer.json", ".tokenizer.json"}) {
    folder.Write(name, "x");
  }
  EXPECT_THAT(Names(folder.path()),
              ElementsAre("generation_config.json", "merges.txt", "tokenizer_config.json", "vocab.json"));
}

// A folder of an older tokenizer, kept beside the new one, once made every export fail with "is not a regular file".
TEST(CopiedFilesTest, WhatIsNoFileIsInNobodysWay) {
  const TempFolder folder;
  fs::create_directory(folder.Path("elsewhere"));
  fs::create_directories(folder.Path("base/tokenizer_old"));
  fs::create_directory_symlink("../elsewhere", folder.Path("base/tokenizer_new"));
  folder.Write("base/tokenizer.json", "x");
  EXPECT_THAT(Names(folder.Path("base")), ElementsAre("tokenizer.json"));
  ASSERT_TRUE(ExportTestModel(HfModel("gpt2"), folder.Path("model")).ok());
  fs::create_directory(folder.Path("model/tokenizer_old"));
  const absl::Status status =
      ExportTestModel(HfModel("gpt2"), folder.Path("out"), {.base_folder = folder.Path("model")});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(fs::exists(folder.Path("out/tokenizer_old")));
}

// TokenizerDigest once followed any link, unlike the reader of the weights.
TEST(CopiedFilesTest, LinksThatLeadOutAreRefused) {
  const TempFolder folder;
  folder.Write("secret", "s");
  fs::create_directory(folder.Path("base"));
  fs::create_symlink("../secret", folder.Path("base/merges.txt"));
  for (const absl::Status& status :
       {ListCopiedHfFiles(folder.Path("base")).status(), TokenizerDigest(folder.Path("base")).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("base/merges.txt is a link that leads out of its folder"));
  }
}

TEST(CopiedFilesTest, LinksToNothingAreRefused) {
  const TempFolder folder;
  fs::create_symlink("gone", folder.Path("tokenizer.json"));
  EXPECT_EQ(ListCopiedHfFiles(folder.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ListCopiedHfFiles(folder.Path("absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST(CopiedFilesTest, LinksWithinTheFolderAndIntoTheCacheAreFollowed) {
  const TempFolder folder;
  fs::create_directories(folder.Path("models--x/snapshots/abc"));
  fs::create_directories(folder.Path("models--x/blobs"));
  const std::string blob = folder.Write("models--x/blobs/1234", "blob");
  const std::string snapshot = folder.Path("models--x/snapshots/abc");
  fs::create_symlink("../../blobs/1234", absl::StrCat(snapshot, "/tokenizer.model"));
  fs::create_symlink("tokenizer.model", absl::StrCat(snapshot, "/spiece.model"));
  const absl::StatusOr<std::vector<HfFile>> files = ListCopiedHfFiles(snapshot);
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2u);
  for (const HfFile& file : *files) EXPECT_EQ(file.path, fs::canonical(blob).string());
}

TEST(TokenizerDigestTest, TellsTheFilesThatDecideTokensInOneOrder) {
  const TempFolder folder;
  EXPECT_EQ(TokenizerDigest(folder.path()).value(), "");
  folder.Write("tokenizer_config.json", "x");
  EXPECT_EQ(TokenizerDigest(folder.path()).value(), "");
  folder.Write("merges.txt", "123456789");
  folder.Write("vocab.json", "");
  folder.Write("tokenizer.json", "123456789");
  EXPECT_EQ(TokenizerDigest(folder.path()).value(),
            "tokenizer.json e3069283, vocab.json 00000000, merges.txt e3069283");
}

}  // namespace
}  // namespace shale::testing
