// BatchLoader provides what each rank reads in each micro-batch.
//
// B samples in a micro-batch, S positions in a sample, W ranks, G samples in a global batch, K = ceil(G / (B W))
// micro-batches on each rank in a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/data_source.h"
#include "engine/files/data/sample_order.h"
#include "engine/files/data/token_source.h"
#include "kernels/integers.h"

namespace shale {

enum class TargetPositions {
  kEvery,  // Every position of a sample may have a target.
  kLast,   // Only the last position of a sample has one. Targets of other positions are not read.
};

struct BatchShape {
  int64_t micro_batch = 1;      // B
  int64_t sequence_length = 1;  // S
  int64_t ranks = 1;            // W
  int64_t global_batch = 1;     // G
  TargetPositions targets = TargetPositions::kEvery;
  // Inputs and targets that are tokens or classes must lie below these; 0: they are not checked.
  int64_t input_ids = 0;
  int64_t target_ids = 0;

  // K
  int64_t AccumulationSteps() const { return CeilDivide(global_batch, micro_batch * ranks); }
};

// The samples of one step: positions [begin, begin + count) of the order.
struct StepSamples {
  int64_t begin = 0;
  int64_t count = 0;  // At most G. Less than G in a short last batch; may be 0.

  bool operator==(const StepSamples&) const = default;
};

// What counts in the loss of a micro-batch.
struct BatchCounts {
  int64_t valid_tokens = 0;  // Targets that count.
  double weight_total = 0;   // The sum of |weight| over these targets. Without weights each has weight 1.
};

// Maps (step, rank, micro-batch) to samples.
//
// Slot b of micro-batch k on rank r holds the step's sample number (k W + r) B + b. Numbers from `count` on are missing
// (a short batch, or G not a multiple of B W): their inputs, features, target values, weights and position ids are 0,
// and their targets kMaskedTarget. Therefore the samples of a step do not depend on W, K or B, and if samples are
// missing, the last micro-batches become empty first.
//
// Has no mutable state of its own: any thread may ask for any part at any time, if the source allows it.
class BatchLoader {
 public:
  // Makes a loader. `order` must have as many samples as `source`. Returns InvalidArgument if it does not, if a size is
  // below 1 or above the largest int32_t, or if the samples of the source have another length.
  static absl::StatusOr<BatchLoader> Create(std::shared_ptr<DataSource> source, SampleOrder order,
                                            const BatchShape& shape);
  // Does the same for the samples of a source of tokens (TokenSamples), which must have at least one.
  static absl::StatusOr<BatchLoader> Create(TokenSource source, SampleOrder order, const BatchShape& shape);

  const BatchShape& shape() const { return shape_; }
  DataSource& source() const { return *source_; }
  int64_t samples_per_epoch() const { return order_.sample_count(); }
  // Describes batches, which have what the source has, and beside target values always weights: 1, or 0 if missing.
  const DataDescription& description() const { return description_; }

  // Sets the fields of BatchShape with these names.
  void Expect(TargetPositions targets, int64_t input_ids, int64_t target_ids);

  // Divides batches of `global_batch` samples into micro-batches of this size. REQUIRES: both are at least 1.
  void Divide(int64_t micro_batch, int64_t global_batch);

  // Fills each part that the batch has, [B, ...], and counts its targets. Allocates nothing on success, unless the
  // source does. Returns an error that names sample, position and data: the error of the source; Unknown if it threw;
  // OutOfRange for an input or a target that is not below its limit, for a weight, a feature or a target value that is
  // not finite, and for a position id that is neither 0 nor one more than the one before. REQUIRES: 0 <= rank < W, 0 <=
  // micro_batch < K, 0 <= step.count <= G, step.begin >= 0.
  absl::StatusOr<BatchCounts> Fill(const StepSamples& step, int64_t rank, int64_t micro_batch,
                                   const SampleParts& out) const;

  // Returns how many of the micro-batch's B slots hold a sample. These slots come first.
  int64_t FilledSlots(const StepSamples& step, int64_t rank, int64_t micro_batch) const;

  // Calls DataSource::Start. Call it before the first Fill.
  absl::Status Start(int64_t position, const std::string* state) const;
  // Tells the source that all samples of `step` were read. Call it after their last Fill.
  absl::Status EndStep(const StepSamples& step) const;

 private:
  BatchLoader(std::shared_ptr<DataSource> source, SampleOrder order, const BatchShape& shape);

  // Reads the sample at `position` and checks it.
  absl::Status Read(int64_t position, const SampleParts& out) const;
  absl::Status Check(const SampleParts& sample) const;
  // Returns a status with the position and the name of the data in its message.
  absl::Status AtPosition(int64_t position, const absl::Status& status) const;

  std::shared_ptr<DataSource> source_;
  DataDescription description_;
  SampleOrder order_;
  BatchShape shape_;
};

}  // namespace shale
