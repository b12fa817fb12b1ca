// Finds the documents in a sequence of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/data_enums.h"
#include "engine/data/documents_report.h"
#include "engine/data/token_source.h"

namespace shale {

// The token that separates documents. At most one of the two is given. A document also ends where the data itself says
// so, and at the end of a file (TokenSource::DocumentBegins).
struct DocumentMark {
  int64_t end_token = -1;    // The last token of every document: a target, and never an input.
  int64_t begin_token = -1;  // The first token of every document, and the last target of the one before.

  bool given() const { return end_token >= 0 || begin_token >= 0; }
  // Returns "documents end with token 10", "documents begin with token 50256", or "documents are files".
  std::string Describe() const;
};

// A document, or a part of a document that is longer than a sequence. Its inputs are tokens [begin, begin + targets).
// The target of each input is the token after it.
struct DocumentPart {
  int64_t begin = 0;
  int32_t targets = 0;

  bool operator==(const DocumentPart&) const = default;
};

struct FoundDocuments {
  std::vector<DocumentPart> parts;  // In order.
  DocumentsReport report;           // `samples` and `padding` are not set.
};

// Reads all tokens once and finds the parts of their documents. Each part has 1 to `most` targets; `longer` says what
// to do with longer documents. Leaves out parts in which no target counts. Returns the errors of TokenSource::Read,
// DocumentBegins and MaskTargets, and InvalidArgument if nothing is left, if the mark does not occur, or if nothing
// separates documents: there is no mark, and one file that does not know its documents.
absl::StatusOr<FoundDocuments> FindDocuments(const TokenSource& source, const DocumentMark& mark, int64_t most,
                                             LongDocuments longer);

}  // namespace shale
