// Finds the documents in a sequence of tokens, and packs items into bins of one size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/files/data/data_enums.h"
#include "engine/files/data/token_source.h"

namespace shale {

// Returns the bin of every item. The sizes of the items in a bin sum to at most `capacity`. Packs items from the
// largest to the smallest, and items of the same size in their order, each into the bin that has the least room for it
// (Johnson, 1973: at most 11/9 of the fewest bins). Numbers bins in the order of their first items. For n items takes
// O(n) memory and O(n log capacity) time. REQUIRES: 1 <= sizes[i] <= capacity.
std::vector<int64_t> BestFit(absl::Span<const int32_t> sizes, int32_t capacity);

// How many documents there are, and what became of them.
struct DocumentsReport {
  int64_t documents = 0;       // Documents that have a target.
  int64_t kept_documents = 0;  // Those of which the sequences hold all or a part.
  int64_t targets = 0;         // The targets of all documents.
  // Documents with more targets than a sequence has positions, what became of them (data.long_documents), the parts
  // into which kSplit cut them, the targets that kTruncate and kDrop left out, and the targets of the longest document.
  int64_t long_documents = 0;
  LongDocuments longer = LongDocuments::kSplit;
  int64_t long_parts = 0, lost_targets = 0, longest = 0;
  // Documents and parts of documents that were left out because none of their targets counts.
  int64_t without_counts = 0;
  int64_t samples = 0;  // Sequences that hold the rest.
  double padding = 0;   // The share of positions that hold no document, 0 to 1.
};

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
