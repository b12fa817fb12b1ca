// Tokenizes the documents of a reader with several threads, and counts their words.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/files/data/data_enums.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/prepared_text.h"
#include "engine/text/tokenizer/bpe_trainer.h"
#include "engine/text/tokenizer/tokenizer.h"

namespace shale {

struct TokenizeOptions {
  int threads = 1;
  // The token to put after every document, after what the tokenizer itself puts there. -1: none.
  int32_t end_of_document = -1;
  LossOn loss_on = LossOn::kCompletions;
  BadLines bad_lines = BadLines::kRefuse;
  SpelledTokens spelled_tokens = SpelledTokens::kInMessages;
  bool allow_dropped_text = false;  // RowOptions::allow_dropped_text.
  // Turns messages into text. Borrowed. If null, messages are refused with the reason `no_chat`, even if bad lines are
  // skipped.
  const ChatTemplate* chat = nullptr;
  absl::Status no_chat = absl::NotFoundError("there is none");
};

// The tokens of a document or of a piece of one.
struct DocumentTokens {
  absl::Span<const int32_t> tokens;
  absl::Span<const uint8_t> counts;  // 1 for each token that counts in the loss, else 0. Empty if all count.
  bool ends = true;                  // Whether the document ends after the last token.
};

// Passes the tokens of all documents to `add`, in order, for any number of threads. Calls `progress`, if it is not
// null, with the totals so far, after every few hundred KB. Calls both from the calling thread. Takes special tokens
// that stand in a text, but not in a chat, as text, unless `spelled_tokens` says otherwise. Returns the first error of
// the reader, of a row, of the tokenizer or of `add`.
//
// A completion counts from the first token that the prompt alone does not have. That token may hold letters of both, if
// the tokenizer joins them. The turns of a chat begin and end by the same rule. The end of a document counts if the
// text before it counts.
absl::StatusOr<TokenizeTotals> TokenizeDocuments(const Tokenizer& tokenizer, DocumentReader& reader,
                                                 const TokenizeOptions& options,
                                                 const std::function<absl::Status(const DocumentTokens&)>& add,
                                                 const std::function<void(const TokenizeTotals&)>& progress = nullptr);

// Adds the words of all documents to `*words` (CountWords), with the same threads and errors. Sets `documents`, `bytes`
// and the skipped lines of the totals.
absl::StatusOr<TokenizeTotals> CountWordsOfDocuments(
    DocumentReader& reader, absl::string_view pattern, const TokenizeOptions& options, WordCounts* words,
    const std::function<void(const TokenizeTotals&)>& progress = nullptr);

}  // namespace shale
