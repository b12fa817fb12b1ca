// Tests what a TokenSource reads.
#include "engine/files/data/token_source.h"

#include <unistd.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/data/llmc_bytes.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::vector<int32_t> ReadAllTokens(const TokenSource& source) {
  std::vector<int32_t> tokens(source.size(), -7);
  EXPECT_TRUE(source.Read(0, source.size(), tokens.data()).ok());
  return tokens;
}

std::string Text(const TokenSource& source) {
  const std::vector<int32_t> tokens = ReadAllTokens(source);
  return std::string(tokens.begin(), tokens.end());
}

TEST(TokenSourceTest, TokensOfTextAreItsBytes) {
  const TempFolder folder;
  const TokenSource source = TokenSource::Open(folder.Write("a.txt", "aé\n")).value();
  EXPECT_THAT(ReadAllTokens(source), ElementsAre('a', 0xC3, 0xA9, '\n'));
  EXPECT_EQ(source.vocabulary(), 256);
  EXPECT_EQ(source.tokenizer(), "bytes");
  EXPECT_EQ(source.format(), DataFormat::kText);
  EXPECT_TRUE(source.is_text());
}

TEST(TokenSourceTest, EveryRangeReadsTheSame) {
  const TempFolder folder;
  const std::string text = "zero\none";
  folder.Write("1", text.substr(0, 4));
  folder.Write("2", text.substr(5));
  const TokenSource source = TokenSource::Open(folder.path()).value();
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    for (size_t end = begin; end <= text.size(); ++end) {
      std::vector<int32_t> tokens(end - begin);
      ASSERT_TRUE(source.Read(begin, end - begin, tokens.data()).ok());
      EXPECT_EQ(std::string(tokens.begin(), tokens.end()), text.substr(begin, end - begin));
    }
  }
}

TEST(TokenSourceTest, ReadsLongerThanAnyBufferAreWhole) {
  const TempFolder folder;
  std::vector<uint16_t> tokens16(700001);
  for (size_t i = 0; i < tokens16.size(); ++i) tokens16[i] = i * 2654435761u % 50257;
  tokens16[600000] = 50256;
  const TokenSource source = TokenSource::Open(folder.Write("a.bin", LlmcBytes(tokens16))).value();
  EXPECT_THAT(ReadAllTokens(source), ElementsAreArray(tokens16));

  std::string text;
  while (text.size() < 1000000) absl::StrAppend(&text, "line ", text.size(), " über\n");
  EXPECT_EQ(Text(TokenSource::Open(folder.Write("a.txt", text)).value()), text);
}

TEST(TokenSourceTest, ReadsBothKindsOfLlmcFiles) {
  const TempFolder folder;
  const TokenSource gpt2 = TokenSource::Open(folder.Write("a.bin", LlmcBytes<uint16_t>({50256, 0, 513}))).value();
  EXPECT_THAT(ReadAllTokens(gpt2), ElementsAre(50256, 0, 513));
  EXPECT_EQ(gpt2.vocabulary(), 50257);
  EXPECT_EQ(gpt2.tokenizer(), "GPT-2 (llm.c)");
  EXPECT_EQ(gpt2.format(), DataFormat::kLlmc);
  EXPECT_FALSE(gpt2.is_text());
  EXPECT_EQ(gpt2.Describe(), absl::StrCat(folder.Path("a.bin"), ": 1 llm.c file, 3 tokens"));
  const TokenSource llama3 = TokenSource::Open(folder.Write("b.bin", LlmcBytes<uint32_t>({128000, 70000, 1}))).value();
  EXPECT_THAT(ReadAllTokens(llama3), ElementsAre(128000, 70000, 1));
  EXPECT_EQ(llama3.vocabulary(), 128256);
  EXPECT_EQ(llama3.tokenizer(), "Llama 3 (llm.c)");
  EXPECT_EQ(llama3.format(), DataFormat::kLlmc);
}

// Returns what numpy.save writes of an array with this description and shape.
std::string NpyBytes(const std::string& descr, const std::string& shape, const std::string& elements, int version = 1) {
  std::string header = absl::StrCat("{'descr': ", descr, ", 'fortran_order': False, 'shape': ", shape, ", }");
  const size_t before = version == 1 ? 10 : 12;
  while ((before + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes("\x93NUMPY\0\0", 8);
  bytes[6] = static_cast<char>(version);
  for (size_t i = 0; i + 8 < before; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + elements;
}

TEST(TokenSourceTest, ReadsArraysOfNumPy) {
  const TempFolder folder;
  const std::string four("\1\0\0\1\xFF\0\0\x80", 8);
  const TokenSource tokens16 = TokenSource::Open(folder.Write("a.npy", NpyBytes("'<u2'", "(4,)", four))).value();
  EXPECT_THAT(ReadAllTokens(tokens16), ElementsAre(1, 256, 255, 32768));
  EXPECT_EQ(tokens16.vocabulary(), 32769);
  EXPECT_EQ(tokens16.format(), DataFormat::kNpy);
  EXPECT_FALSE(tokens16.is_text());
  EXPECT_EQ(tokens16.Describe(), absl::StrCat(folder.Path("a.npy"), ": 1 NumPy file, 4 tokens"));
  const auto read = [&](const std::string& bytes) {
    return ReadAllTokens(TokenSource::Open(folder.Write("b.npy", bytes)).value());
  };
  EXPECT_THAT(read(NpyBytes("'|u1'", "(4,)", "\x01z\xFF!")), ElementsAre(1, 'z', 255, '!'));
  const std::string large("\x40\x9C\1\0\7\0\0\0", 8);
  for (const char* descr : {"'<u4'", "'<i4'"}) {
    for (const int version : {1, 2, 3}) {
      EXPECT_THAT(read(NpyBytes(descr, "(2,)", large, version)), ElementsAre(105536, 7)) << descr << version;
    }
  }
  // In a folder they follow one another in the order of their names, as those of build-nanogpt do.
  folder.Write("b.npy", NpyBytes("'<u2'", "(1,)", std::string("\7\0", 2)));
  EXPECT_THAT(ReadAllTokens(TokenSource::Open(folder.path()).value()), ElementsAre(1, 256, 255, 32768, 7));
}

TEST(TokenSourceTest, RefusesArraysOfNumPyThatAreNoTokens) {
  const TempFolder folder;
  const std::string two("\1\0\2\0", 4);
  const auto refused = [&](absl::StatusCode code, const std::string& bytes, const std::string& message) {
    const absl::Status status = TokenSource::Open(folder.Write("a.npy", bytes)).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument, kDataLoss = absl::StatusCode::kDataLoss;
  refused(kInvalid, NpyBytes("'<i8'", "(1,)", two + two), "a NumPy array of \"<i8\"; tokens are read as |u1, ");
  refused(kInvalid, NpyBytes("'>u2'", "(2,)", two), "numpy.save(FILE, array.astype(\"<u4\"))");
  refused(kInvalid, NpyBytes("[('a', '<u2')]", "(2,)", two), "tokens are read as");
  refused(kInvalid, NpyBytes("'<u2'", "(1, 2)", two), "the shape (1, 2), and tokens are read from an array with one");
  refused(kInvalid, NpyBytes("'<u2'", "()", two), "numpy.save(FILE, array.reshape(-1))");
  refused(kInvalid, NpyBytes("'<u2'", "(-2,)", two), "one dimension");
  refused(kInvalid, NpyBytes("'<u2'", "(2,)", two, 4), "of version 4; supported: versions 1 to 3");
  refused(kDataLoss, NpyBytes("'<u2'", "(3,)", two), "promises 3 tokens of 2 bytes, and it has 4 bytes of them");
  refused(kDataLoss, NpyBytes("'<u2'", "(2,)", two + "\1"), "and it has 5 bytes of them");
  refused(kDataLoss, NpyBytes("'<u2'", "(9223372036854775807,)", two), "and it has 4 bytes of them");
  refused(kDataLoss, NpyBytes("'<i4'", "(1,)", "\xFF\xFF\xFF\xFF"), "");
  refused(kDataLoss, NpyBytes("'<u2'", "(2,)", two).substr(0, 50), "it promises a header of 118 bytes");
  refused(kDataLoss, "\x93NUMPY\x01", "it has no whole header");
}

TEST(TokenSourceTest, TokensInMemoryHaveNoEncoding) {
  const TokenSource source = TokenSource::FromTokens({3, 9, 4}).value();
  EXPECT_EQ(source.vocabulary(), 10);
  EXPECT_EQ(source.tokenizer(), "");
  EXPECT_EQ(source.format(), DataFormat::kByContent);
  EXPECT_FALSE(source.is_text());
  EXPECT_EQ(source.Describe(), "tokens in memory: 3 tokens");
}

TEST(TokenSourceTest, VocabularyHoldsEveryToken) {
  const TempFolder folder;
  const std::string path = folder.Write("a.bin", LlmcBytes<uint16_t>({1, 50999, 2}));
  EXPECT_EQ(TokenSource::Open(path).value().vocabulary(), 51000);
}

TEST(TokenSourceTest, AFolderIsItsFilesInNameOrderWithANewlineBetween) {
  const TempFolder folder;
  folder.Write("b.txt", "B");
  folder.Write("a.md", "A\n");
  folder.Write("Z", "Z");
  folder.Write("empty", "");
  folder.Write(".hidden", "H");
  std::filesystem::create_directory(folder.Path("sub"));
  folder.Write("sub/c.txt", "C");
  folder.Write("README.md", "R");
  const TokenSource source = TokenSource::Open(folder.path()).value();
  EXPECT_EQ(Text(source), "Z\nA\n\nB\nC");
  EXPECT_THAT(source.skipped(), ElementsAre("README.md (describes the data)", "empty (empty)"));
}

// The fortunes package has an index (x.dat) and a link (x.u8) beside each text x.
TEST(TokenSourceTest, AFolderReadsEachTextOnceAndNoBinaries) {
  const TempFolder folder;
  folder.Write("art", "Art\n%\n");
  folder.Write("art.dat", std::string("\0\0\0\2\0\0\1\321", 8));
  std::filesystem::create_symlink("art", folder.Path("art.u8"));
  folder.Write("wisdom", "Wise\n");
  const TokenSource source = TokenSource::Open(folder.path()).value();
  EXPECT_EQ(Text(source), "Art\n%\n\nWise\n");
  EXPECT_THAT(source.skipped(), ElementsAre("art.dat (binary)", "art.u8 (the same as art)"));
  EXPECT_EQ(
      source.Describe(),
      absl::StrCat(folder.path(), ": 2 text files, 12 tokens; skipped: art.dat (binary), art.u8 (the same as art)"));
}

TEST(TokenSourceTest, AFolderOfLlmcFilesIsOneSequence) {
  const TempFolder folder;
  folder.Write("train_000001.bin", LlmcBytes<uint16_t>({1, 2}));
  folder.Write("train_000002.bin", LlmcBytes<uint16_t>({}));
  folder.Write("train_000003.bin", LlmcBytes<uint16_t>({50999, 4, 5}));
  EXPECT_THAT(ReadAllTokens(TokenSource::Open(folder.path()).value()), ElementsAre(1, 2, 50999, 4, 5));
}

TEST(TokenSourceTest, TheFormatChoosesAmongTheFilesOfAFolder) {
  const TempFolder folder;
  folder.Write("a.bin", LlmcBytes<uint16_t>({1, 2}));
  folder.Write("text", "R");
  const TokenSource text = TokenSource::Open(folder.path(), DataFormat::kText).value();
  EXPECT_EQ(Text(text), "R");
  EXPECT_THAT(text.skipped(), ElementsAre("a.bin (an llm.c token file, not text)"));
  const TokenSource llmc = TokenSource::Open(folder.path(), DataFormat::kLlmc).value();
  EXPECT_THAT(ReadAllTokens(llmc), ElementsAre(1, 2));
  EXPECT_THAT(llmc.skipped(), ElementsAre("text (text, not an llm.c token file)"));
  EXPECT_THAT(std::string(TokenSource::Open(folder.path()).status().message()),
              HasSubstr(" mixes text (text) and an llm.c token file (a.bin); set data.format"));
  folder.Write("text", LlmcBytes<uint32_t>({1}));
  EXPECT_THAT(std::string(TokenSource::Open(folder.path()).status().message()),
              AllOf(HasSubstr("hold tokens of different kinds (text, llm.c for GPT-2, llm.c for Llama-3"),
                    HasSubstr("keep one kind in a folder, or ask for text or llm.c")));
}

// A run that resumes knows its data by this, and went on with shuffled data of the same length before.
TEST(TokenSourceTest, TheDigestIsThatOfTheTokensInTheirOrder) {
  const TempFolder folder;
  for (const char* name : {"whole", "parts", "reversed"}) std::filesystem::create_directory(folder.Path(name));
  folder.Write("whole/a", LlmcBytes<uint16_t>({1, 2, 3, 4, 5}));
  folder.Write("parts/a", LlmcBytes<uint16_t>({1}));
  folder.Write("parts/b", LlmcBytes<uint16_t>({2, 3, 4, 5}));
  folder.Write("reversed/a", LlmcBytes<uint16_t>({5, 4, 3, 2, 1}));
  const auto digest = [&](const std::string& name) { return TokenSource::Open(folder.Path(name))->TokensDigest(); };
  EXPECT_EQ(digest("whole"), digest("parts"));
  EXPECT_NE(digest("whole"), digest("reversed"));
  EXPECT_EQ(TokenSource::Open(folder.Path("whole"))->Slice(1, 3).TokensDigest(), digest("whole"));
  EXPECT_NE(TokenSource::Open(folder.Path("whole"))->DocumentsDigest().value(),
            TokenSource::Open(folder.Path("parts"))->DocumentsDigest().value());
  const std::string one = folder.Write("text", "ab\ncd");
  std::filesystem::create_directory(folder.Path("texts"));
  folder.Write("texts/1", "ab");
  folder.Write("texts/2", "cd");
  EXPECT_EQ(digest("text"), digest("texts"));
}

TEST(TokenSourceTest, ASliceIsASourceOfItsOwn) {
  const TempFolder folder;
  const TokenSource source = TokenSource::Open(folder.Write("a.txt", "0123456789")).value();
  const TokenSource slice = source.Slice(2, 8).Slice(1, 4);
  EXPECT_EQ(Text(slice), "345");
  EXPECT_EQ(slice.size(), 3);
  EXPECT_EQ(source.Slice(10, 10).size(), 0);
  EXPECT_THAT(slice.Describe(), HasSubstr("3 of 10 tokens"));
}

TEST(TokenSourceTest, HoldsOutTheEnd) {
  const TokenSource source = TokenSource::FromTokens({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).value();
  const TokenSplit split = HoldOutEnd(source, 0.39, 2).value();
  EXPECT_THAT(ReadAllTokens(split.training), ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(ReadAllTokens(split.evaluation), ElementsAre(7, 8, 9));
}

TEST(TokenSourceTest, RefusesToHoldOutTooMuchOrTooLittle) {
  const TokenSource source = TokenSource::FromTokens({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).value();
  EXPECT_THAT(std::string(HoldOutEnd(source, 0.2, 2).status().message()),
              HasSubstr("with 0.2 of the data held out, too little is left for evaluation: tokens in memory: 2 tokens "
                        "found, but one sequence of 2 takes 3"));
  EXPECT_THAT(std::string(HoldOutEnd(source, 0.8, 2).status().message()), HasSubstr("left for training"));
  EXPECT_FALSE(HoldOutEnd(source, 0, 2).ok());
  EXPECT_FALSE(HoldOutEnd(source, 1, 2).ok());
  EXPECT_FALSE(HoldOutEnd(source, std::nan(""), 2).ok());
}

// More files than stay open at once.
TEST(TokenSourceTest, ReadsAnyNumberOfFiles) {
  const TempFolder folder;
  std::string text;
  for (int i = 100; i < 400; ++i) {
    folder.Write(absl::StrCat(i), absl::StrCat("file ", i));
    absl::StrAppend(&text, text.empty() ? "" : "\n", "file ", i);
  }
  const TokenSource source = TokenSource::Open(folder.path()).value();
  EXPECT_EQ(Text(source), text);

  folder.Write("399", "file XXX");
  std::vector<int32_t> tokens(source.size());
  const absl::Status status = source.Read(0, source.size(), tokens.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/399 changed after it was checked"));
}

TEST(TokenSourceTest, ThreadsReadAtOnce) {
  const TempFolder folder;
  std::vector<uint32_t> tokens(50000);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TokenSource source = TokenSource::Open(folder.Write("a.bin", LlmcBytes(tokens))).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, source] {
      std::vector<int32_t> out(100);
      for (int64_t begin = t; begin + 100 <= source.size(); begin += 997) {
        ASSERT_TRUE(source.Read(begin, 100, out.data()).ok());
        ASSERT_EQ(out.front(), begin);
        ASSERT_EQ(out.back(), begin + 99);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TokenSourceTest, ReadsTheFortunes) {
  const std::string path = "/usr/share/games/fortunes";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the package fortunes is not installed";
  const TokenSource source = TokenSource::Open(path).value();
  EXPECT_GT(source.size(), 2000000);
  EXPECT_LT(source.size(), 4000000);
  EXPECT_TRUE(source.CheckVocabulary(256).ok());
}

}  // namespace
}  // namespace shale
