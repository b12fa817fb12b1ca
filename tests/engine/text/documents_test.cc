#include "tests/engine/text/documents.h"

#include <zstd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/data/data_files.h"
#include "engine/files/data/token_source.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/text_row.h"
#include "engine/text/documents/token_files.h"
#include "engine/text/documents/tokenize_documents.h"
#include "engine/text/tokenizer/pre_tokenizer.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

TEST(DocumentsTest, PiecesAndThreadsDoNotChangeTheTokens) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt";
  WriteDocument(path, LongText());
  for (const char* family : {"gpt2", "qwen2", "llama3", "llama2"}) {
    const Tokenizer tokenizer = LoadTokenizer(family);
    std::vector<int32_t> whole;
    ASSERT_TRUE(Encoder(tokenizer).Encode(LongText(), {.add_prefix_and_suffix = true}, &whole).ok());
    for (const int64_t bytes : {100, 5000, 1 << 20}) {
      for (const int threads : {1, 3}) {
        const DocumentReader::Options options = {.cut_lines = tokenizer.by_line(), .piece_bytes = bytes};
        const auto tokens = TokensOf(tokenizer, path, options, {.threads = threads});
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
  const Tokenizer tokenizer = LoadTokenizer("gpt2");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  // A folder in which text and rows mix would be refused.
  WriteDocument(folder.path() + "/all.list", "a.txt\nb.jsonl\nempty\n");
  const auto tokens = TokensOf(tokenizer, folder.path() + "/all.list", {}, {.end_of_document = end});
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
  WriteDocument(folder.path() + "/inside/LICENSE", "x");
  WriteDocument(folder.path() + "/inside/more.list", "a.txt");
  const absl::StatusOr<DataFiles> files = ListDataFiles(folder.path(), {});
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->files.size(), 1);
  EXPECT_EQ(files->files[0].path, folder.path() + "/a.txt");
  EXPECT_THAT(files->skipped,
              ::testing::ElementsAre("a.dat (binary)", "b.txt (the same as a.txt)",
                                     "inside/LICENSE (describes the data)", "inside/more.list (a list of files)"));
  std::filesystem::remove(folder.path() + "/a.txt");
  EXPECT_THAT(ErrorOfDocuments(folder.path()), ::testing::HasSubstr("/b.txt"));
  std::filesystem::remove(folder.path() + "/b.txt");
  EXPECT_EQ(ErrorOfDocuments(folder.path()),
            folder.path() +
                " has no data: skipped a.dat (binary), inside/LICENSE (describes the data), "
                "inside/more.list (a list of files)");
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
  const Tokenizer tokenizer = LoadTokenizer("llama3");
  const DocumentReader::Options options = {.cut_lines = true, .piece_bytes = 5000};
  const auto whole = TokensOf(tokenizer, folder.path() + "/whole.txt", options, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  std::vector<int32_t> twice = *whole;
  twice.insert(twice.end(), whole->begin(), whole->end());
  for (const char* name : {"/a.txt.gz", "/a.txt.zst"}) {
    const auto tokens = TokensOf(tokenizer, folder.path() + name, options, {});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, *whole) << name;
  }
  WriteDocument(folder.path() + "/all.list", "a.txt.zst\n\nwhole.txt\r\n");
  const auto tokens = TokensOf(tokenizer, folder.path() + "/all.list", options, {.threads = 2});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, twice);
  WriteDocument(folder.path() + "/all.list", "whole.txt\nmissing.txt\n");
  EXPECT_THAT(ErrorOfDocuments(folder.path() + "/all.list"),
              ::testing::StartsWith(folder.path() + "/all.list:2: cannot open "));
  // Regression: a name ended at a zero byte, so another file was read than the list says.
  WriteDocument(folder.path() + "/all.list", std::string("whole.txt\n\nwhole.txt\0.old\n", 25));
  EXPECT_EQ(ErrorOfDocuments(folder.path() + "/all.list"),
            folder.path() + "/all.list:3: the name \"whole.txt\\000.old\" has control characters; rename the file");
  // Regression: the lines of the other list were trained on as text.
  WriteDocument(folder.path() + "/other.list", "whole.txt\n");
  WriteDocument(folder.path() + "/all.list", "other.list\n");
  EXPECT_EQ(ErrorOfDocuments(folder.path() + "/all.list"),
            absl::StrCat(folder.path(), "/all.list:1: ", folder.path(),
                         "/other.list is a list of files itself; a list names files and folders; put its lines here"));
}

// Regression: zeros behind the data, which gzip and Python ignore, and windows over 128 MiB were called damage.
TEST(DocumentsTest, PackedFilesAreReadAsTheirProgramsReadThem) {
  TempFolder folder;
  const std::string path = folder.path() + "/a", text = "one\ntwo\n";
  const Tokenizer tokenizer = LoadTokenizer("gpt2");
  const auto read = [&](const std::string& packed) -> std::string {
    WriteDocument(path, packed);
    const auto tokens = TokensOf(tokenizer, path, {}, {});
    return tokens.ok() ? tokenizer.Decode(*tokens, false) : std::string(tokens.status().message());
  };
  const std::string zeros(300000, '\0');
  EXPECT_EQ(read(Gzip(text) + zeros), text);
  EXPECT_EQ(read(Gzip(text) + zeros + Gzip(text)), text + text);
  EXPECT_THAT(read(Gzip(text) + zeros + "x"), ::testing::HasSubstr("bytes that are no gzip data follow its data, at "));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 31);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in = {text.data(), text.size(), 0};
  ZSTD_outBuffer out = {packed.data(), packed.size(), 0};
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush) == 0, true);  // The frame does not know its size.
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
  ZSTD_freeCCtx(context);
  EXPECT_EQ(read(packed.substr(0, out.pos)), text);
}

// Regression: one byte that is not UTF-8 ended a run, with no way to go on. The right texts are Python's.
TEST(DocumentsTest, BytesThatAreNotUtf8AreReplacedIfAsked) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt", r = "\uFFFD";
  for (const auto& [bytes, wanted] : {std::pair<std::string, std::string>{"a\xE9 b", "a" + r + " b"},
                                      {"\xF0\x9F\x98z\xF0\x9F\x98\x80", r + "z😀"},
                                      {"\xE2\x82", r},
                                      {"\xC0\x80\xED\xA0\x80", r + r + r + r + r},
                                      {"\xF4\x90\x80\x80é", r + r + r + r + "é"}}) {
    for (const int64_t size : {1, 2, 3, 100}) {
      WriteDocument(path, bytes);
      absl::StatusOr<DocumentReader> reader =
          DocumentReader::Open(path, {.bad_bytes = BadBytes::kReplace, .piece_bytes = size});
      ASSERT_TRUE(reader.ok()) << reader.status();
      std::vector<DocumentPiece> pieces;
      ASSERT_TRUE(reader->Read(&pieces).ok());
      ASSERT_EQ(pieces.size(), 1);
      EXPECT_EQ(pieces[0].text, wanted) << size;
      EXPECT_GE(reader->replaced(), 1);
      EXPECT_THAT(reader->first_replaced(), ::testing::StartsWith(path + ": the byte at offset "));
    }
  }
  WriteDocument(folder.path() + "/a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xE9\"}\n");
  EXPECT_EQ(RowsOf(folder.path() + "/a.jsonl", {.bad_bytes = BadBytes::kReplace}), "a|" + r + "|");
  EXPECT_EQ(RowsOf(folder.path() + "/a.jsonl"), folder.path() + "/a.jsonl:2: it is not UTF-8");
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
  const std::string not_utf8 = text + " is not UTF-8: byte 0x";
  EXPECT_THAT(ErrorOfDocuments(text), ::testing::StartsWith(not_utf8 + "E9 at offset 5 (line 3) does not begin"));
  EXPECT_THAT(ErrorOfDocuments(text, {.piece_bytes = 2}), ::testing::StartsWith(not_utf8 + "E9 at offset 5 (line 3)"));
  WriteDocument(text, "a\nb\xF0\x9F\x98");
  EXPECT_THAT(ErrorOfDocuments(text), ::testing::StartsWith(not_utf8 + "F0 at offset 3 (line 2)"))
      << "half a character at the end";
  WriteDocument(json, "{\"text\": \"\\ud83d\"}\n");
  EXPECT_EQ(ErrorOfDocuments(json), json +
                                        ":1: the string at its byte 17 has half of a pair of surrogates (\\ud800 to "
                                        "\\udfff), which is no character");
  WriteDocument(json, "{\"text\": \"x\", \"n\": 1e400}\n");
  EXPECT_EQ(ErrorOfDocuments(json), json + ":1: the number 1e400 is too large");
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
    Encoder encoder(LoadTokenizer(family));
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
