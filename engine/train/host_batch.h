// HostBatch holds the samples of one run of a program in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/batch_loader.h"
#include "engine/runtime/host_items.h"

namespace shale {

// Owns host memory for the samples of one run of a program, for some ranks: for every token 4 bytes of input and 4 of
// target, and what else the data has (DataDescription). Borrows the loader.
class HostBatch {
 public:
  // Allocates memory for `ranks`, numbers of ranks of the loader, or for all its ranks if `ranks` is empty.
  HostBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks = {});

  // Loads the samples of `step`, in the order of their positions, and returns the inputs of each rank's executor, in
  // the order of `ranks`. They point into this object and are valid until the next call.
  absl::StatusOr<std::vector<StepInputs>> Fill(const StepSamples& step);

 private:
  // The data of one rank, [K, B, ...]. A part that the data does not have is empty.
  struct OfRank {
    std::vector<int32_t> inputs, targets, position_ids;
    std::vector<float> features, target_values, weights;
  };
  // Returns the parts of a micro-batch.
  SampleParts MicroBatch(OfRank& rank, int64_t micro_batch) const;

  const BatchLoader& loader_;
  int64_t micro_batches_;
  std::vector<int> ranks_;
  std::vector<OfRank> data_;  // In the order of ranks_.
};

}  // namespace shale
