// Tests which data is refused, and the messages.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/data/token_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/data/llmc_bytes.h"
#include "tests/engine/files/io/obey_permissions.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

class TokenSourceErrorsTest : public ::testing::Test {
 protected:
  // Opens `path` and expects an error with `code` and `message`.
  void ExpectRefused(const std::string& path, absl::StatusCode code, const std::string& message,
                     DataFormat format = DataFormat::kByContent) {
    const absl::Status status = TokenSource::Open(path, format).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  TempFolder folder_;
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

TEST_F(TokenSourceErrorsTest, AMissingPath) {
  ExpectRefused(
      folder_.Path("none"), absl::StatusCode::kNotFound,
      absl::StrCat(
          "cannot open ", folder_.Path("none"),
          ": No such file or directory; data is a file of text or of rows of JSON, a folder of such files or an "
          "llm.c token file"));
  ExpectRefused("", absl::StatusCode::kNotFound, "No such file or directory");
}

TEST_F(TokenSourceErrorsTest, AnEmptyFile) {
  const std::string path = folder_.Write("a.txt", "");
  ExpectRefused(path, kInvalid, absl::StrCat(path, " is empty; it must hold text or tokens"));
}

TEST_F(TokenSourceErrorsTest, AFileThatMayNotBeRead) {
  const std::string path = folder_.Write("a.txt", "secret");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  const ObeyPermissions obey;
  const std::string message = absl::StrCat("cannot open ", path, ": Permission denied");
  ExpectRefused(path, absl::StatusCode::kPermissionDenied, message);
  ExpectRefused(folder_.path(), absl::StatusCode::kPermissionDenied, message);
}

TEST_F(TokenSourceErrorsTest, AFolderThatMayNotBeRead) {
  std::filesystem::create_directory(folder_.Path("sub"));
  ASSERT_EQ(chmod(folder_.Path("sub").c_str(), 0), 0);
  const ObeyPermissions obey;
  ExpectRefused(folder_.Path("sub"), absl::StatusCode::kPermissionDenied,
                absl::StrCat("cannot read folder ", folder_.Path("sub"), ": Permission denied"));
}

TEST_F(TokenSourceErrorsTest, WhatIsNoFile) {
  ASSERT_EQ(mkfifo(folder_.Path("pipe").c_str(), 0600), 0);
  ExpectRefused(folder_.Path("pipe"), kInvalid, "pipe is not a regular file");
}

TEST_F(TokenSourceErrorsTest, ABrokenLinkInAFolder) {
  folder_.Write("a.txt", "text");
  std::filesystem::create_symlink("gone", folder_.Path("link"));
  ExpectRefused(folder_.path(), absl::StatusCode::kNotFound, "/link: No such file or directory");
}

TEST_F(TokenSourceErrorsTest, AFolderWithoutFiles) {
  ExpectRefused(folder_.path(), kInvalid, absl::StrCat(folder_.path(), " has no data"));
  folder_.Write("a.dat", std::string("\0\1", 2));
  folder_.Write("empty", "");
  std::filesystem::create_directory(folder_.Path("sub"));
  ExpectRefused(folder_.path(), kInvalid, " has no data: skipped a.dat (binary), empty (empty)");
  ExpectRefused(folder_.path(), kInvalid, " has no llm.c token file: skipped a.dat (binary)", DataFormat::kLlmc);
}

TEST_F(TokenSourceErrorsTest, TextThatIsNotUtf8) {
  const std::string path = folder_.Write("latin1.txt", "first\nsecond\nM\xFCnchen\n");
  ExpectRefused(path, kInvalid, absl::StrCat(path, " is not UTF-8: byte 0xFC at offset 14 (line 3)"));
  ExpectRefused(path, kInvalid, "iconv -f WINDOWS-1252 -t UTF-8");
  ExpectRefused(folder_.path(), kInvalid, "latin1.txt is not UTF-8: byte 0xFC at offset 14 (line 3)");
}

TEST_F(TokenSourceErrorsTest, TextThatEndsInsideACharacter) {
  ExpectRefused(folder_.Write("a.txt", "one \xE2\x82"), kInvalid, "byte 0xE2 at offset 4 (line 1)");
}

TEST_F(TokenSourceErrorsTest, NotUtf8FarInsideAFile) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "line\n";
  ExpectRefused(folder_.Write("a.txt", text + "\xC0\x80"), kInvalid, "byte 0xC0 at offset 500000 (line 100001)");
}

TEST_F(TokenSourceErrorsTest, TextShorterThanOneSequence) {
  const std::string path = folder_.Write("a.txt", "12345678");
  const TokenSource source = TokenSource::Open(path).value();
  EXPECT_TRUE(source.CheckLength(7).ok());
  const absl::Status status = source.CheckLength(8);
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_EQ(status.message(), absl::StrCat(path,
                                           ": 8 tokens found, but one sequence of 8 takes 9 (targets are one token "
                                           "later than inputs); give more data or a sequence length of at most 7"));
}

TEST_F(TokenSourceErrorsTest, AVocabularySmallerThanAToken) {
  const std::string path = folder_.Write("a.bin", LlmcBytes<uint16_t>({5, 700, 6, 700}));
  const TokenSource source = TokenSource::Open(path).value();
  EXPECT_TRUE(source.CheckVocabulary(701).ok());
  const absl::Status status = source.CheckVocabulary(700);
  EXPECT_EQ(status.code(), kInvalid);
  EXPECT_EQ(status.message(), absl::StrCat(path,
                                           ": token 700 at position 1 does not fit a vocabulary of 700; the model "
                                           "needs at least 701"));
}

TEST_F(TokenSourceErrorsTest, AVocabularySmallerThanAByteNamesItsFile) {
  folder_.Write("a.txt", "ab");
  folder_.Write("b.txt", "az");
  const TokenSource source = TokenSource::Open(folder_.path()).value();
  EXPECT_TRUE(source.CheckVocabulary(128).ok());
  EXPECT_EQ(source.CheckVocabulary(100).message(),
            absl::StrCat(folder_.Path("b.txt"),
                         ": token 122 at position 4 does not fit a vocabulary of 100; the model "
                         "needs at least 123 (256 for any text)"));
}

TEST_F(TokenSourceErrorsTest, AnLlmcFileCutShort) {
  const std::string bytes = LlmcBytes<uint16_t>({1, 2, 3});
  ExpectRefused(folder_.Write("a.bin", bytes.substr(0, 1029)), kDataLoss,
                "a.bin was cut short: its header promises 3 tokens, 1030 bytes in all, but it has 1029");
  ExpectRefused(folder_.Write("a.bin", bytes.substr(0, 500)), kDataLoss, "a.bin has 500 bytes, less than the header");
  ExpectRefused(folder_.Write("a.bin", bytes + "x"), kDataLoss, "is damaged: its header promises 3 tokens, 1030 bytes");
  const std::string wide = LlmcBytes<uint32_t>({1, 2, 3});
  ExpectRefused(folder_.Write("a.bin", wide.substr(0, 1030)), kDataLoss, "1036 bytes in all, but it has 1030");
}

TEST_F(TokenSourceErrorsTest, AnLlmcFileOfAnotherVersion) {
  std::string bytes = LlmcBytes<uint16_t>({1, 2, 3});
  bytes[4] = 9;
  ExpectRefused(folder_.Write("a.bin", bytes), kInvalid, "llm.c token file of version 9; only version 1 is supported");
}

TEST_F(TokenSourceErrorsTest, AnLlmcFileWithANegativeCount) {
  std::string bytes = LlmcBytes<uint16_t>({1, 2, 3});
  bytes[11] = static_cast<char>(0x80);
  ExpectRefused(folder_.Write("a.bin", bytes), kDataLoss, "its header promises -2147483645 tokens");
}

TEST_F(TokenSourceErrorsTest, AnLlmcFileWithoutTokens) {
  ExpectRefused(folder_.Write("a.bin", LlmcBytes<uint16_t>({})), kInvalid, "holds no tokens: its count is 0");
}

TEST_F(TokenSourceErrorsTest, AnLlmcTokenThatNoVocabularyHas) {
  ExpectRefused(folder_.Write("a.bin", LlmcBytes<uint32_t>({7, 0x80000000u})), kDataLoss,
                "is damaged: token 2147483648 at position 1");
}

TEST_F(TokenSourceErrorsTest, AnotherMagicNumber) {
  std::string bytes = LlmcBytes<uint16_t>({1, 2, 3});
  bytes[0] ^= 1;
  const std::string path = folder_.Write("a.bin", bytes);
  ExpectRefused(path, kInvalid,
                "begins with the number 20240521; an llm.c token file begins with 20240520 (GPT-2) or "
                "20240801 (Llama-3)",
                DataFormat::kLlmc);
  ExpectRefused(path, kInvalid, "is binary, not text");
}

// Regression: a folder of Parquet files had no data, and a README beside them was all that was trained on.
TEST_F(TokenSourceErrorsTest, AParquetFileIsRefusedWithTheWayToConvertIt) {
  const std::string path = folder_.Write("a.parquet", absl::StrCat("PAR1", std::string(40, '\0'), "PAR1"));
  folder_.Write("README.md", "text");
  for (const std::string& where : {path, folder_.path()}) {
    ExpectRefused(where, kInvalid, path + " is a Parquet file, which is not read; convert it to JSON Lines: python3 ");
  }
  folder_.Write("a.parquet", "PAR1 and PAR2 are texts");
  EXPECT_TRUE(TokenSource::Open(folder_.path()).ok());
}

// Regression: a list was trained on as text, and the error for a compressed file asked to convert its encoding.
TEST_F(TokenSourceErrorsTest, CompressedFilesAndListsAreForTokenizers) {
  const std::string packed = folder_.Write("a.jsonl.gz", "\x1F\x8B\x08 and so on");
  for (const DataFormat format : {DataFormat::kByContent, DataFormat::kText}) {
    ExpectRefused(packed, kInvalid, packed + " is compressed, and only text for a tokenizer is decompressed", format);
  }
  const std::string list = folder_.Write("all.list", "a.txt\n");
  ExpectRefused(list, kInvalid, list + " is a list of files, and a list can only name text for a tokenizer");
  EXPECT_TRUE(TokenSource::Open(list, DataFormat::kText).ok());
}

// Regression: data in other forms was said to be text in another encoding, or a token file.
TEST_F(TokenSourceErrorsTest, AFileOfAnotherFormIsCalledByItsName) {
  const std::string zeros(40, '\0');
  for (const auto& [bytes, name] : {std::pair<std::string, const char*>{"PAR1" + zeros, "a Parquet file"},
                                    {"ARROW1" + zeros, "an Arrow file"},
                                    {"PK\x03\x04" + zeros, "a zip archive"},
                                    {"\xFF\xFEz" + zeros, "text in UTF-16"},
                                    {std::string(257, '\0') + "ustar", "a tar archive"}}) {
    const std::string path = folder_.Write("a", bytes);
    for (const DataFormat format : {DataFormat::kByContent, DataFormat::kText, DataFormat::kLlmc}) {
      ExpectRefused(path, kInvalid, absl::StrCat(path, " is ", name, ", which is not read; "), format);
    }
    ExpectRefused(folder_.path(), kInvalid, absl::StrCat(path, " is ", name, ", which is not read; "));
  }
  ExpectRefused(folder_.Write("a", "\x80\x04" + zeros), kInvalid, "/a is a Python pickle, not text");
  // Text in UTF-16 without a mark, and a file that a crash left empty, were trained with their zero bytes.
  const std::string wide = folder_.Write("a", std::string("w\0i\0d\0e\0", 8));
  ExpectRefused(wide, kInvalid,
                wide + " is binary, not text: one of its first bytes is zero; data.format=TEXT reads it");
  EXPECT_TRUE(TokenSource::Open(wide, DataFormat::kText).ok());
  const std::string rows = folder_.Write("a", "{\"text\": 1}\n");
  ExpectRefused(rows, kInvalid, rows + " holds rows of JSON, and is no llm.c token file", DataFormat::kLlmc);
  ExpectRefused(rows, kInvalid, rows + " has JSON Lines, which only a tokenizer makes tokens of");
  EXPECT_TRUE(TokenSource::Open(rows, DataFormat::kText).ok());
  const std::string table = folder_.Write("a.csv", "text\nx\n");
  ExpectRefused(table, kInvalid, table + " is a table (CSV), which is not read; convert it");
  EXPECT_TRUE(TokenSource::Open(table, DataFormat::kText).ok());
}

// Regression: a run on a text ended when the time of its file changed.
TEST_F(TokenSourceErrorsTest, AFileThatIsOnlyTouchedWhileInUse) {
  const std::string path = folder_.Write("a.txt", "0123456789");
  const TokenSource source = TokenSource::Open(path).value();
  const timespec later[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = 1}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), later, 0), 0);
  int32_t tokens[10];
  EXPECT_TRUE(source.Read(0, 10, tokens).ok());
}

TEST_F(TokenSourceErrorsTest, NoTokensOfOnesOwn) {
  EXPECT_EQ(TokenSource::FromTokens({}).status().message(), "no tokens were given");
  EXPECT_EQ(TokenSource::FromTokens({1, 2, -1}).status().message(), "token -1 at position 2 is negative");
}

TEST_F(TokenSourceErrorsTest, AFileCutShortWhileInUse) {
  const std::string path = folder_.Write("a.txt", "0123456789");
  const TokenSource source = TokenSource::Open(path).value();
  ASSERT_EQ(truncate(path.c_str(), 5), 0);
  int32_t tokens[10];
  EXPECT_EQ(source.Read(0, 5, tokens).code(), kDataLoss);
  EXPECT_EQ(source.Read(0, 10, tokens).code(), kDataLoss);
}

TEST_F(TokenSourceErrorsTest, AFileRewrittenInPlaceWhileInUse) {
  const std::string path = folder_.Write("a.txt", "0123456789");
  const TokenSource source = TokenSource::Open(path).value();
  int32_t tokens[10];
  EXPECT_TRUE(source.Read(0, 10, tokens).ok());
  folder_.Write("a.txt", "9876543210");
  const timespec later[2] = {{.tv_nsec = UTIME_NOW}, {.tv_sec = 1}};  // File system clocks are coarse.
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), later, 0), 0);
  const absl::Status status = source.Read(0, 10, tokens);
  EXPECT_EQ(status.code(), kDataLoss);
  EXPECT_EQ(status.message(), path + " changed after it was checked; it must not change while it is in use");
}

// An index of Megatron. Tests change its parts.
struct MegatronIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t type = 8;
  std::vector<int32_t> lengths = {3, 0, 2};
  std::vector<int64_t> offsets = {0, 6, 6}, documents = {0, 2, 3};

  std::string Bytes() const {
    std::string bytes = magic;
    const auto add = [&](const auto* values, size_t count) {
      bytes.append(reinterpret_cast<const char*>(values), count * sizeof(*values));
    };
    const uint64_t counts[] = {lengths.size(), documents.size()};
    add(&version, 1);
    add(&type, 1);
    add(counts, 2);
    add(lengths.data(), lengths.size());
    add(offsets.data(), offsets.size());
    add(documents.data(), documents.size());
    return bytes;
  }
};

TEST_F(TokenSourceErrorsTest, MegatronFilesAreReadAndChecked) {
  const std::string path = folder_.Path("a.idx"), tokens = folder_.Path("a.bin");
  const std::vector<uint16_t> written = {1, 2, 300, 4, 65535};
  folder_.Write("a.bin", std::string(reinterpret_cast<const char*>(written.data()), 10));
  folder_.Write("a.idx", MegatronIndex().Bytes());
  for (const std::string& where : {path, folder_.Path("")}) {
    const absl::StatusOr<TokenSource> source = TokenSource::Open(where);
    ASSERT_TRUE(source.ok()) << source.status();
    std::vector<int32_t> read(source->size());
    ASSERT_TRUE(source->Read(0, source->size(), read.data()).ok());
    EXPECT_EQ(read, std::vector<int32_t>(written.begin(), written.end()));
    EXPECT_EQ(source->format(), DataFormat::kMegatron);
    EXPECT_TRUE(source->knows_documents());
    EXPECT_EQ(*source->DocumentBegins(), std::vector<int64_t>{3});
  }
  const auto refused = [&](const MegatronIndex& index, absl::StatusCode code, const std::string& message) {
    folder_.Write("a.idx", index.Bytes());
    ExpectRefused(path, code, message, DataFormat::kMegatron);
  };
  refused({.magic = "MMIDIDX01"}, kInvalid, "does not begin with MMIDIDX; give the .idx file");
  refused({.version = 2}, kInvalid, "version 2 and type 8 of tokens; supported: version 1 with the types");
  refused({.type = 7}, kInvalid, "version 1 and type 7 of tokens");
  refused({.type = 4, .offsets = {0, 12, 12}}, kDataLoss, "it has 10 bytes, and the sequences of ");
  refused({.offsets = {0, 6, 8}}, kDataLoss, "sequence 2 has the length 2 and the offset 8; wanted the offset 6");
  refused({.lengths = {3, -1, 2}}, kDataLoss, "sequence 1 has the length -1");
  refused({.lengths = {3, 0}}, kDataLoss, "its size 90 is not that of 2 sequences and 3 boundaries");
  refused({.documents = {0, 2}}, kDataLoss, "the last document ends at sequence 2; wanted 3, the number of sequences");
  refused({.documents = {0, 3, 2}}, kDataLoss, "document 2 begins at sequence 2; wanted at least 3");
  refused({.documents = {1, 3}}, kDataLoss, "document 0 begins at sequence 1; wanted 0");
  folder_.Write("a.idx", MegatronIndex().Bytes() + std::string(3, '\0'));
  ExpectRefused(path, kInvalid, "has a mode for each sequence, as data with images has; only text is supported",
                DataFormat::kMegatron);
  folder_.Write("a.idx", MegatronIndex().Bytes().substr(0, 20));
  ExpectRefused(path, kInvalid, "is too short", DataFormat::kMegatron);
  folder_.Write("a.idx", MegatronIndex().Bytes());
  std::filesystem::remove(tokens);
  ExpectRefused(path, absl::StatusCode::kNotFound, absl::StrCat("cannot open ", tokens));
}

}  // namespace
}  // namespace shale
