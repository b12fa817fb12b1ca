#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/data/token_source.h"
#include "engine/tokenize/bpe_trainer.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/scanner.h"
#include "engine/tokenize/token_files.h"
#include "engine/tokenize/tokenize_documents.h"
#include "engine/tokenize/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/io/temp_folder.h"

namespace shale {
namespace {

void WriteDocument(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

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
      TokenizeDocuments(tokenizer, *reader, how, [&](const DocumentTokens& document) {
        all.insert(all.end(), document.tokens.begin(), document.tokens.end());
        return absl::OkStatus();
      });
  if (!totals.ok()) return totals.status();
  EXPECT_EQ(totals->tokens, static_cast<int64_t>(all.size()));
  return all;
}

std::string ErrorOfDocuments(const std::string& path, const DocumentReader::Options& options = {}) {
  return std::string(Tokens(Load("gpt2"), path, options, {}).status().message());
}

std::string LongText() {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += absl::StrCat("Line ", i * 37, "  of\n", i % 3 == 0 ? "\n" : "", "文字é😀. it's\n");
  return text;
}

TEST(DocumentsTest, PiecesAndThreadsDoNotChangeTheTokens) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt";
  WriteDocument(path, LongText());
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
  WriteDocument(folder.path() + "/b.jsonl", "{\"text\": \"x<|endoftext|>\", \"n\": 1}\n\n{\"text\": \"y\"}");
  WriteDocument(folder.path() + "/a.txt", "z\n");
  WriteDocument(folder.path() + "/.hidden", "no");
  WriteDocument(folder.path() + "/empty", "");
  const Tokenizer tokenizer = Load("gpt2");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  const auto tokens = Tokens(tokenizer, folder.path(), {}, {.end_of_document = end});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokenizer.Decode(*tokens, false), "z\n<|endoftext|>x<|endoftext|><|endoftext|>y<|endoftext|>");
  EXPECT_EQ(std::count(tokens->begin(), tokens->end(), end), 3) << "what looks like a special token is text";
}

TEST(DocumentsTest, BinaryAndKnownFilesOfAFolderAreSkipped) {
  TempFolder folder;
  WriteDocument(folder.path() + "/a.txt", "x");
  WriteDocument(folder.path() + "/a.dat", std::string("\0\1", 2));
  std::filesystem::create_symlink("a.txt", folder.path() + "/b.txt");
  std::filesystem::create_directory(folder.path() + "/inside");
  const absl::StatusOr<DocumentFiles> files = ListDocumentFiles(folder.path());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->paths, ::testing::ElementsAre(folder.path() + "/a.txt"));
  EXPECT_THAT(files->skipped, ::testing::ElementsAre("a.dat (binary)", "b.txt (the same as a.txt)", "inside (folder)"));
  std::filesystem::remove(folder.path() + "/a.txt");
  EXPECT_THAT(ErrorOfDocuments(folder.path()), ::testing::HasSubstr("/b.txt"));
  std::filesystem::remove(folder.path() + "/b.txt");
  EXPECT_EQ(ErrorOfDocuments(folder.path()), folder.path() + " has no data: skipped a.dat (binary), inside (folder)");
}

// Returns what zlib packs `text` into, as one member of a .gz file.
std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = packed.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

TEST(DocumentsTest, PackedFilesAndListsAreRead) {
  TempFolder folder;
  const std::string text = LongText(), rest = "and\nthe rest";
  WriteDocument(folder.path() + "/whole.txt", text + rest);
  WriteDocument(folder.path() + "/a.txt.gz", Gzip(text) + Gzip(rest));
  WriteDocument(folder.path() + "/a.txt.zst", Zstd(text) + Zstd(rest));
  const Tokenizer tokenizer = Load("llama3");
  const DocumentReader::Options options = {.cut_lines = true, .piece_bytes = 5000};
  const auto whole = Tokens(tokenizer, folder.path() + "/whole.txt", options, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  std::vector<int32_t> twice = *whole;
  twice.insert(twice.end(), whole->begin(), whole->end());
  for (const char* name : {"/a.txt.gz", "/a.txt.zst"}) {
    const auto tokens = Tokens(tokenizer, folder.path() + name, options, {});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, *whole) << name;
  }
  WriteDocument(folder.path() + "/all.list", "a.txt.zst\n\nwhole.txt\r\n");
  const auto tokens = Tokens(tokenizer, folder.path() + "/all.list", options, {.threads = 2});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, twice);
  WriteDocument(folder.path() + "/all.list", "whole.txt\nmissing.txt\n");
  EXPECT_THAT(ErrorOfDocuments(folder.path() + "/all.list"),
              ::testing::StartsWith(folder.path() + "/all.list:2: cannot open "));
}

TEST(DocumentsTest, DamagedPackedFilesAreRefused) {
  TempFolder folder;
  const std::string text = LongText();
  for (const auto& [ending, packed] : {std::pair(".gz", Gzip(text)), std::pair(".zst", Zstd(text))}) {
    const std::string path = folder.path() + "/a.txt" + ending;
    for (const size_t size : {size_t{3}, packed.size() / 2, packed.size() - 1}) {
      WriteDocument(path, packed.substr(0, size));
      EXPECT_EQ(ErrorOfDocuments(path), path + " is damaged or was cut short: it ends inside of its compressed data");
    }
    WriteDocument(path, text);
    EXPECT_THAT(ErrorOfDocuments(path), ::testing::StartsWith(path + " is damaged or was cut short: "));
  }
}

TEST(DocumentsTest, CompletionsCountAndPromptsDoNot) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  WriteDocument(path,
                "{\"prompt\": \"the question\", \"completion\": \" an answer\"}\n{\"text\": \"all\"}\n{\"prompt\": 1}\n"
                "{\"prompt\": \"\", \"completion\": \"x\"}\nno row\n");
  const Tokenizer tokenizer = Load("llama3");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  for (const LossOn loss_on : {LossOn::kCompletions, LossOn::kAll}) {
    absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, {});
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<std::string> counted, left;
    const absl::StatusOr<TokenizeTotals> totals = TokenizeDocuments(
        tokenizer, *reader, {.end_of_document = end, .loss_on = loss_on, .bad_lines = BadLines::kSkip},
        [&](const DocumentTokens& document) {
          std::vector<int32_t> some, others;
          for (size_t i = 0; i < document.tokens.size(); ++i) {
            const bool counts = document.counts.empty() || document.counts[i] == 1;
            (counts ? some : others).push_back(document.tokens[i]);
          }
          counted.push_back(tokenizer.Decode(some, false));
          left.push_back(tokenizer.Decode(others, false));
          return absl::OkStatus();
        });
    ASSERT_TRUE(totals.ok()) << totals.status();
    EXPECT_EQ(totals->documents, 3);
    EXPECT_EQ(totals->skipped, 2);
    EXPECT_EQ(totals->first_skipped,
              path + ":3: it has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"");
    const std::string begin = "<|begin_of_text|>", close = "<|endoftext|>";
    if (loss_on == LossOn::kAll) {
      EXPECT_EQ(totals->counted, totals->tokens);
      EXPECT_THAT(left, ::testing::ElementsAre("", "", ""));
      continue;
    }
    EXPECT_THAT(counted, ::testing::ElementsAre(" an answer" + close, begin + "all" + close, begin + "x" + close));
    EXPECT_THAT(left, ::testing::ElementsAre(begin + "the question", "", ""));
    EXPECT_LT(totals->counted, totals->tokens);
  }
}

TEST(DocumentsTest, ThreadsCountTheSameWords) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt";
  WriteDocument(path, LongText());
  WordCounts whole;
  CountWords(LongText(), kLlama3Pattern, &whole);
  for (const int threads : {1, 3}) {
    absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, {.cut_lines = true, .piece_bytes = 3000});
    ASSERT_TRUE(reader.ok()) << reader.status();
    WordCounts words;
    const auto totals = CountWordsOfDocuments(*reader, kLlama3Pattern, {.threads = threads}, &words);
    ASSERT_TRUE(totals.ok()) << totals.status();
    EXPECT_EQ(totals->bytes, std::ssize(LongText()));
    EXPECT_EQ(words, whole);
  }
}

TEST(DocumentsTest, ErrorsNameFileAndLine) {
  TempFolder folder;
  const std::string json = folder.path() + "/a.jsonl", text = folder.path() + "/a.txt";
  WriteDocument(json, "{\"text\": \"x\"}\n\n{\"test\": 1}\n");
  EXPECT_EQ(ErrorOfDocuments(json),
            json + ":3: it has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"");
  WriteDocument(json, "{\"text\": 1}\n");
  EXPECT_EQ(ErrorOfDocuments(json), json + ":1: \"text\": found 1; wanted a string");
  WriteDocument(json, "{\"text\": \"x\"}\n{");
  EXPECT_EQ(ErrorOfDocuments(json), json + ":2: it is not JSON at its byte 2");
  WriteDocument(text, "a\nb\nc\xE9 d\n");
  EXPECT_THAT(ErrorOfDocuments(text),
              ::testing::StartsWith(text + ":3: the byte at offset 5 of the file does not begin"));
  EXPECT_THAT(ErrorOfDocuments(text, {.piece_bytes = 2}), ::testing::StartsWith(text + ":3: the byte at offset 5 "));
  WriteDocument(text, "a\nb\xF0\x9F\x98");
  EXPECT_THAT(ErrorOfDocuments(text), ::testing::StartsWith(text + ":2: ")) << "half a character at the end";
  WriteDocument(json, "{\"text\": \"\\ud83d\"}\n");
  EXPECT_THAT(ErrorOfDocuments(json), ::testing::StartsWith(json + ":1: it is not JSON"))
      << "half of a pair of surrogates";
  WriteDocument(text, std::string(100, 'a'));
  EXPECT_EQ(ErrorOfDocuments(text, {.piece_bytes = 10, .largest_piece_bytes = 50}),
            text + ":1: a document that this tokenizer cannot take in pieces has more than 50 B");
  WriteDocument(json, "{\"text\": \"x\"}\n{\"text\": \"" + std::string(100, 'a') + "\"}\n");
  EXPECT_EQ(ErrorOfDocuments(json, {.piece_bytes = 10, .largest_piece_bytes = 50}),
            json + ":2: a line has more than 50 B");
  WriteDocument(text, absl::StrCat("PAR1", LongText(), "PAR1"));
  EXPECT_THAT(ErrorOfDocuments(text),
              ::testing::StartsWith(text + " is a Parquet file, which is not read; convert it to JSON"));
  WriteDocument(text, "");
  EXPECT_EQ(ErrorOfDocuments(text), text + " has no data");
}

// A word takes 24 times its size, so a file without a space could otherwise take all memory of a machine.
TEST(DocumentsTest, WordsThatAreTooLongAreRefused) {
  std::vector<int32_t> tokens;
  const EncodeOptions options = {.largest_piece_bytes = 100};
  for (const char* family : {"gpt2", "llama2", "falcon"}) {
    Encoder encoder(Load(family));
    const std::string spaces = std::string(family) == "llama2" ? "" : " ";  // This family does not split at spaces.
    EXPECT_TRUE(encoder.Encode(std::string(90, 'a') + spaces + std::string(90, 'b'), {}, &tokens).ok());
    if (!spaces.empty()) {
      EXPECT_TRUE(encoder.Encode(std::string(90, 'a') + spaces + std::string(90, 'b'), options, &tokens).ok())
          << family;
    }
    const absl::Status status = encoder.Encode(std::string(101, 'a'), options, &tokens);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << family;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(" bytes in a row that the tokenizer does not split; at most 100 are supported"));
  }
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
