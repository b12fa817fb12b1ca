// The cells of tools/bench_predict: jobs whose steps are predicted and measured.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/config/job.h"

namespace shale {

struct Cell {
  std::string name;   // For the table.
  std::string model;  // The name of its job.
  // Cells with the same shape are calibrated together. Those with the same alternatives take as many tokens a step,
  // each in another way (those that update in backward do not clip).
  std::string shape, alternatives;
  Job job;
  bool processes = false;  // Its ranks exchange as processes do (WithRanksAsProcesses).
};

// Says on standard error that a cell is not measured.
void LeaveOut(const std::string& name, const absl::Status& why);

// Returns the cells of the jobs at `models` with the overrides `set`: fp32 and bf16, on 1 rank, 2 threads and 2
// processes, one micro-batch a step and two with each accumulation, nothing recomputed and blocks, updates after and in
// backward. If there are more than `most`, leaves some out at random, the same ones each time. LeaveOut names those
// whose settings exclude each other.
absl::StatusOr<std::vector<Cell>> CellsOf(const std::vector<std::string>& models, const std::vector<std::string>& set,
                                          int64_t most);

}  // namespace shale
