// DocumentsReport: how documents were packed or padded (data.packing).
#pragma once

#include <cstdint>

namespace shale {

struct DocumentsReport {
  int64_t documents = 0;       // Documents that have a target.
  int64_t long_documents = 0;  // Documents with more targets than a sequence has positions (data.long_documents).
  int64_t without_counts =
      0;                // Documents and parts of documents that were left out because none of their targets counts.
  int64_t samples = 0;  // Sequences that hold the rest.
  double padding = 0;   // The share of positions that hold no document, 0 to 1.
};

}  // namespace shale
