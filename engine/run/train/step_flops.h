// StepFlops counts the floating-point operations of a step, as MFU counts them (ModelFlopsPerToken). Those of attention
// depend on the lengths of documents, which are known when they are read.
//
// MFU is the time that a step takes at the peak, as a share of the time that it takes. A job with precision.matmuls FP8
// has two peaks. So FLOPs of fp8 matrices are divided by how much faster these are multiplied at most, and the quotient
// of all FLOPs and the peak of the other matmuls is the time at the peak.
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
  // `float8_speed`: how many times faster than other matmuls those of fp8 matrices are at most.
  StepFlops(const Job& job, const ModelGraph& graph, double float8_speed = 1);

  // Returns whether sequences hold several documents each (data.packing PACK), whose attention OfDocuments counts.
  // Otherwise OfTokens counts everything.
  bool has_documents() const { return has_documents_; }
  // Returns the FLOPs of so many tokens, those of fp8 matrices divided. With documents, without those of their
  // attention.
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

// Returns the fraction of the peak of `ranks` ranks, in FLOP/s each, that these FLOPs in so many seconds are. Returns 0
// if the peak is not known, which 0 stands for, or if the fraction is above 1, so that the peak is none.
double MfuOf(double flops, double seconds, double peak_flops, int64_t ranks);

// Returns how many times faster than other matmuls those of fp8 matrices are at most, by the two peaks. Returns 1 if
// one of them is not known, which 0 stands for.
double Float8Speed(double peak_flops, double peak_flops_fp8);

}  // namespace shale
