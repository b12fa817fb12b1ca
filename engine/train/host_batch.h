// The tokens of one run of a program, in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/batch_loader.h"
#include "engine/runtime/host_items.h"

namespace shale {

// Host memory for the tokens of one run of a program, for every rank of this process: 8 bytes per token, for an int32
// input and an int32 target. Borrows the loader.
class HostBatch {
 public:
  // For the given ranks of the loader's; empty: for all of them.
  HostBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks = {});

  // Loads the tokens of `step` and returns the inputs of each rank's executor, in the order of the ranks. They point
  // into this object and are valid until the next call.
  absl::StatusOr<std::vector<StepInputs>> Fill(const StepSamples& step);

 private:
  const BatchLoader& loader_;
  int64_t micro_batches_;
  int64_t tokens_;
  std::vector<int> ranks_;
  std::vector<std::vector<int32_t>> inputs_, targets_;  // In the order of ranks_.
};

}  // namespace shale
