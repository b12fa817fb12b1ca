#include <fstream>
#include <string>
#include <vector>

#include "engine/data/token_source.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/token_files.h"
#include "engine/tokenize/tokenize_documents.h"
#include "engine/tokenize/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/io/temp_folder.h"

namespace shale {
namespace {

void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

Tokenizer Load(const std::string& family) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load("tests/engine/tokenize/golden/" + family);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Returns the tokens of all documents at `path`, or the error.
absl::StatusOr<std::vector<int32_t>> Tokens(const Tokenizer& tokenizer, const std::string& path,
                                            const DocumentReader::Options& options, const TokenizeOptions& how) {
  absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, options);
  if (!reader.ok()) return reader.status();
  std::vector<int32_t> all;
  const absl::StatusOr<TokenizeTotals> totals =
      TokenizeDocuments(tokenizer, *reader, how, [&](absl::Span<const int32_t> tokens) {
        all.insert(all.end(), tokens.begin(), tokens.end());
        return absl::OkStatus();
      });
  if (!totals.ok()) return totals.status();
  EXPECT_EQ(totals->tokens, static_cast<int64_t>(all.size()));
  return all;
}

std::string ErrorOf(const std::string& path, const DocumentReader::Options& options = {}) {
  return std::string(Tokens(Load("gpt2"), path, options, {}).status().message());
}

std::string LongText() {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += absl::StrCat("Line ", i * 37, "  of\n", i % 3 == 0 ? "\n" : "", "文字é. it's\n");
  return text;
}

TEST(DocumentsTest, PiecesAndThreadsDoNotChangeTheTokens) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt";
  Write(path, LongText());
  for (const char* family : {"gpt2", "qwen2", "llama3", "llama2"}) {
    const Tokenizer tokenizer = Load(family);
    std::vector<int32_t> whole;
    ASSERT_TRUE(Encoder(tokenizer).Encode(LongText(), {.add_prefix_and_suffix = true}, &whole).ok());
    for (const int64_t bytes : {100, 5000, 1 << 20}) {
      for (const int threads : {1, 3}) {
        const DocumentReader::Options options = {.cut_lines = tokenizer.by_line(), .piece_bytes = bytes};
        const auto tokens = Tokens(tokenizer, path, options, {.threads = threads});
        ASSERT_TRUE(tokens.ok()) << tokens.status();
        EXPECT_EQ(*tokens, whole) << family << " " << bytes << " " << threads;
      }
    }
  }
}

TEST(DocumentsTest, DocumentsAreFilesAndLinesOfJson) {
  TempFolder folder;
  Write(folder.path() + "/b.jsonl", "{\"text\": \"x<|endoftext|>\", \"n\": 1}\n\n{\"text\": \"y\"}");
  Write(folder.path() + "/a.txt", "z\n");
  Write(folder.path() + "/.hidden", "no");
  Write(folder.path() + "/empty", "");
  const Tokenizer tokenizer = Load("gpt2");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  const auto tokens = Tokens(tokenizer, folder.path(), {}, {.end_of_document = end});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokenizer.Decode(*tokens, false), "z\n<|endoftext|>x<|endoftext|><|endoftext|>y<|endoftext|>");
  EXPECT_EQ(std::count(tokens->begin(), tokens->end(), end), 3) << "what looks like a special token is text";
}

TEST(DocumentsTest, ErrorsNameFileAndLine) {
  TempFolder folder;
  const std::string json = folder.path() + "/a.jsonl", text = folder.path() + "/a.txt";
  Write(json, "{\"text\": \"x\"}\n\n{\"test\": 1}\n");
  EXPECT_EQ(ErrorOf(json), json + ":3: it has no \"text\"");
  Write(json, "{\"text\": 1}\n");
  EXPECT_EQ(ErrorOf(json), json + ":1: \"text\": found 1; wanted a string");
  Write(json, "{\"text\": \"x\"}\n{");
  EXPECT_EQ(ErrorOf(json), json + ":2: it is not JSON at its byte 2");
  Write(text, "a\nb\nc\xE9 d\n");
  EXPECT_THAT(ErrorOf(text), testing::StartsWith(text + ":3: the byte at offset 5 of the file does not begin"));
  EXPECT_THAT(ErrorOf(text, {.piece_bytes = 2}), testing::StartsWith(text + ":3: the byte at offset 5 "));
  Write(text, std::string(100, 'a'));
  EXPECT_EQ(ErrorOf(text, {.piece_bytes = 10, .largest_piece_bytes = 50}),
            text + ":1: a document that this tokenizer cannot take in pieces has more than 50 B");
  Write(text, "");
  EXPECT_EQ(ErrorOf(text), text + " has no data");
}

TEST(TokenFilesTest, TheEngineReadsThem) {
  for (const int64_t vocabulary : {700, 70000}) {
    TempFolder folder;
    const std::string path = folder.path() + "/tokens";
    absl::StatusOr<TokenFilesWriter> writer = TokenFilesWriter::Create(path, vocabulary, /*tokens_in_file=*/4);
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 699, static_cast<int32_t>(vocabulary - 1), 0, 7, 8, 9};
    ASSERT_TRUE(writer->Add(absl::MakeSpan(tokens).subspan(0, 3)).ok());
    ASSERT_TRUE(writer->Add(absl::MakeSpan(tokens).subspan(3)).ok());
    ASSERT_TRUE(writer->Commit().ok());
    const absl::StatusOr<TokenSource> source = TokenSource::Open(path);
    ASSERT_TRUE(source.ok()) << source.status();
    std::vector<int32_t> read(source->size());
    ASSERT_TRUE(source->Read(0, source->size(), read.data()).ok());
    EXPECT_EQ(read, tokens);
  }
}

TEST(TokenFilesTest, NothingAppearsWithoutTokens) {
  TempFolder folder;
  absl::StatusOr<TokenFilesWriter> writer = TokenFilesWriter::Create(folder.path() + "/tokens", 700);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(writer->Commit().message(), "the data have no tokens");
  EXPECT_FALSE(TokenSource::Open(folder.path() + "/tokens").ok());
}

}  // namespace
}  // namespace shale
