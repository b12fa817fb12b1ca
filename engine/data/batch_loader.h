// BatchLoader provides the tokens that each rank reads in each micro-batch.
//
// B sequences in a micro-batch, S tokens in a sequence, W ranks, G sequences in a global batch, K = ceil(G / (B W))
// micro-batches on each rank in a step.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/sample_order.h"
#include "engine/data/token_source.h"
#include "kernels/integers.h"

namespace shale {

enum class TargetPositions {
  kEvery,  // Every token of a sequence has a target.
  kLast,   // Only the last token of a sequence has one: the token that follows the sequence.
};

// The target of a position that does not count in the loss.
constexpr int32_t kMaskedTarget = -1;

struct BatchShape {
  int64_t micro_batch = 1;      // B
  int64_t sequence_length = 1;  // S
  int64_t ranks = 1;            // W
  int64_t global_batch = 1;     // G
  TargetPositions targets = TargetPositions::kEvery;

  // K
  int64_t AccumulationSteps() const { return CeilDivide(global_batch, micro_batch * ranks); }
};

// The samples of one step: positions [begin, begin + count) of the order.
struct StepSamples {
  int64_t begin = 0;
  int64_t count = 0;  // At most G. Less than G in a short last batch; may be 0.

  bool operator==(const StepSamples&) const = default;
};

// Maps (step, rank, micro-batch) to tokens. Has no mutable state, so any thread may ask for any part at any time.
//
// Slot b of micro-batch k on rank r holds the step's sample number (k W + r) B + b. Numbers from `count` on are missing
// (a short batch, or G not a multiple of B W): their inputs are 0, their targets kMaskedTarget. Therefore the samples
// of a step do not depend on W, K or B, and if samples are missing, the last micro-batches become empty first.
class BatchLoader {
 public:
  // Makes a loader. `order` must have as many samples as `source` has samples of S tokens. Returns InvalidArgument if
  // it does not, if a size is below 1 or above the largest int32_t, or if the source has no complete sample.
  static absl::StatusOr<BatchLoader> Create(TokenSource source, SampleOrder order, const BatchShape& shape);

  const BatchShape& shape() const { return shape_; }
  const TokenSource& source() const { return source_; }
  int64_t samples_per_epoch() const { return order_.sample_count(); }

  // Returns the number of targets that count in a micro-batch. Reads no tokens.
  int64_t ValidTokens(const StepSamples& step, int64_t rank, int64_t micro_batch) const;

  // Fills inputs and targets, each [B, S]. On success, allocates no more than TokenSource::Read does.
  // REQUIRES: 0 <= rank < W, 0 <= micro_batch < K, 0 <= step.count <= G, step.begin >= 0.
  absl::Status Fill(const StepSamples& step, int64_t rank, int64_t micro_batch, absl::Span<int32_t> inputs_BS,
                    absl::Span<int32_t> targets_BS) const;

 private:
  BatchLoader(TokenSource source, SampleOrder order, const BatchShape& shape)
      : source_(std::move(source)), order_(order), shape_(shape) {}

  // Returns how many of the micro-batch's B slots hold a sample. These slots come first.
  int64_t FilledSlots(const StepSamples& step, int64_t rank, int64_t micro_batch) const;

  TokenSource source_;
  SampleOrder order_;
  BatchShape shape_;
};

}  // namespace shale
