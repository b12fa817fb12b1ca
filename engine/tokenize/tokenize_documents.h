// Tokenizes the documents of a reader with several threads, and counts their words.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/data_enums.h"
#include "engine/tokenize/bpe_trainer.h"
#include "engine/tokenize/chat_template.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/text_progress.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

struct TokenizeOptions {
  int threads = 1;
  // Put behind every document, besides what the tokenizer itself puts around it. -1: none.
  int32_t end_of_document = -1;
  LossOn loss_on = LossOn::kCompletions;
  BadLines bad_lines = BadLines::kRefuse;
  // Makes text of messages. Null: they are refused, also if bad lines are skipped, because of `no_chat`. Borrowed.
  const ChatTemplate* chat = nullptr;
  absl::Status no_chat = absl::NotFoundError("there is none");
};

// The tokens of a document, or of a piece of one.
struct DocumentTokens {
  absl::Span<const int32_t> tokens;
  absl::Span<const uint8_t> counts;  // Whether each token counts in the loss, 1 or 0. Empty: all do.
  bool ends = true;                  // The document ends behind the last token.
};

// Passes the tokens of all documents to `add`, in order, whatever the number of threads is. Calls `progress`, if there
// is one, with the totals so far after each some hundred KB. Both are called by this thread. Returns the first error of
// the reader, of a row, of the tokenizer or of `add`. Special tokens that stand in the text are text.
//
// Of a prompt with a completion, the tokens count that follow those which the prompt alone has: the first may have
// letters of both if the tokenizer joins them. So it is with each turn of a chat, of which the tokens end where the
// template does. An end of a document counts if what stands before it does.
absl::StatusOr<TokenizeTotals> TokenizeDocuments(const Tokenizer& tokenizer, DocumentReader& reader,
                                                 const TokenizeOptions& options,
                                                 const std::function<absl::Status(const DocumentTokens&)>& add,
                                                 const std::function<void(const TokenizeTotals&)>& progress = nullptr);

// Counts the words of all documents (CountWords), in the same way. Sets `documents` and `bytes` of the totals.
absl::StatusOr<TokenizeTotals> CountWordsOfDocuments(
    DocumentReader& reader, absl::string_view pattern, const TokenizeOptions& options, WordCounts* words,
    const std::function<void(const TokenizeTotals&)>& progress = nullptr);

}  // namespace shale
