// HostBatch holds the tokens of one run of a program in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/batch_loader.h"
#include "engine/runtime/host_items.h"

namespace shale {

// Owns host memory for the tokens of one run of a program, for some ranks: 8 bytes per token, for an int32 input and an
// int32 target. Borrows the loader.
class HostBatch {
 public:
  // Allocates memory for `ranks`, numbers of ranks of the loader, or for all its ranks if `ranks` is empty.
  HostBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks = {});

  // Loads the tokens of `step` and returns the inputs of each rank's executor, in the order of `ranks`. They point into
  // this object and are valid until the next call.
  absl::StatusOr<std::vector<StepInputs>> Fill(const StepSamples& step);

 private:
  const BatchLoader& loader_;
  int64_t micro_batches_;
  int64_t tokens_;
  std::vector<int> ranks_;
  std::vector<std::vector<int32_t>> inputs_, targets_;  // In the order of ranks_.
};

}  // namespace shale
