// What tests of documents and of their rows share: writing files, and reading them as tokens or texts.
#pragma once

#include <zlib.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/text_row.h"
#include "engine/text/documents/tokenize_documents.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace shale {

inline void WriteDocument(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline Tokenizer LoadTokenizer(const std::string& family) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load("tests/engine/text/golden/" + family);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Returns the tokens of all documents at `path`, or the error.
inline absl::StatusOr<std::vector<int32_t>> TokensOf(const Tokenizer& tokenizer, const std::string& path,
                                                     const DocumentReader::Options& options,
                                                     const TokenizeOptions& how) {
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

inline std::string ErrorOfDocuments(const std::string& path, const DocumentReader::Options& options = {}) {
  return std::string(TokensOf(LoadTokenizer("gpt2"), path, options, {}).status().message());
}

inline std::string LongText() {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += absl::StrCat("Line ", i * 37, "  of\n", i % 3 == 0 ? "\n" : "", "文字é😀. it's\n");
  return text;
}

// Returns what zlib packs `text` into, as one member of a .gz file.
inline std::string Gzip(const std::string& text) {
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

// Returns the texts of the rows at `path`, or the error.
inline std::string RowsOf(const std::string& path, const DocumentReader::Options& options = {}) {
  absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, options);
  if (!reader.ok()) return std::string(reader.status().message());
  std::string texts;
  while (true) {
    std::vector<DocumentPiece> pieces;
    const absl::Status status = reader->Read(&pieces);
    for (const DocumentPiece& piece : pieces) {
      const absl::StatusOr<TextRow> row = ReadTextRow(piece, {.loss_on = LossOn::kAll});
      if (piece.is_row && !row.ok()) return std::string(row.status().message());
      absl::StrAppend(&texts, piece.is_row ? row->text : "prose: " + piece.text, "|");
    }
    if (!status.ok()) return std::string(status.message());
    if (pieces.empty()) return texts;
  }
}

}  // namespace shale
