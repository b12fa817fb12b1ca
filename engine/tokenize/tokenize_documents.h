// Tokenizes the documents of a reader with several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/tokenizer.h"

namespace shale {

struct TokenizeOptions {
  int threads = 1;
  // Put behind every document, besides what the tokenizer itself puts around it. -1: none.
  int32_t end_of_document = -1;
};

struct TokenizeTotals {
  int64_t documents = 0;
  int64_t bytes = 0;  // Of text.
  int64_t tokens = 0;
};

// Passes the tokens of all documents to `add`, in order, whatever the number of threads is. Calls `progress`, if there
// is one, with the totals so far, about ten times a second on a fast machine. Both are called by this thread. Returns
// the first error of the reader, the tokenizer or `add`. Special tokens that stand in the text are text.
absl::StatusOr<TokenizeTotals> TokenizeDocuments(const Tokenizer& tokenizer, DocumentReader& reader,
                                                 const TokenizeOptions& options,
                                                 const std::function<absl::Status(absl::Span<const int32_t>)>& add,
                                                 const std::function<void(const TokenizeTotals&)>& progress = nullptr);

}  // namespace shale
