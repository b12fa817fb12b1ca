// StepFlops counts the floating-point operations of a step, as MFU counts them (ModelFlopsPerToken). Those of attention
// depend on the lengths of documents, which are known when they are read.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "absl/types/span.h"
#include "engine/compile/graph/graph.h"
#include "engine/plan/config/job.h"

namespace shale {

// Borrows the job and its training graph. Used by one thread at a time.
class StepFlops {
 public:
  // `float8_speed`: how many times faster than other matmuls those of fp8 matrices are at most (Float8Speed in
  // engine/plan/time/prediction.h).
  StepFlops(const Job& job, const ModelGraph& graph, double float8_speed = 1);

  // Returns whether sequences hold several documents each (data.packing PACK), whose attention OfDocuments counts.
  // Otherwise OfTokens counts everything.
  bool has_documents() const { return has_documents_; }
  // Returns the FLOPs of so many tokens, as FlopsAtPeak counts them. With documents, without those of their attention.
  double OfTokens(int64_t tokens) const { return static_cast<double>(tokens) * per_token_; }
  // Returns the FLOPs of the attention of documents. `position_ids` are those of whole sequences, one after another: a
  // document begins where the position is 0. A position of padding is a document of one token. REQUIRES:
  // has_documents().
  double OfDocuments(absl::Span<const int32_t> position_ids);

 private:
  double OfDocument(int64_t length);

  const Job& job_;
  const ModelGraph& graph_;
  const bool has_documents_;
  double per_token_;
  std::unordered_map<int64_t, double> of_length_;  // What OfDocument has returned.
};

}  // namespace shale
