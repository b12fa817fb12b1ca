// Steps that were measured on a GPU, operation by operation, and the works that follow from them.
//
// A trace says how long all matmuls of a step took, not how long each did. So the seconds of a class are divided among
// its works as their FLOPs or bytes, and with the rates of the profile, say. Their sum is that of the trace.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/planner/step_facts.h"
#include "proto/machine.pb.h"

namespace shale {

// Classes of ops, as the columns of the table in measured_rows.cc.
inline constexpr int kOpClasses = 10;

struct MeasuredRow {
  std::string job;    // Of tools/bench/jobs/gpu.
  int sequences = 0;  // In a step.
  double tokens_per_second = 0;
  std::array<double, kOpClasses> microseconds_a_token = {};
  std::vector<std::string> settings = {};  // In which the job differed then.
};

// Returns the rows of tools/bench/results/2026-11-27-h200.md.
std::vector<MeasuredRow> H200Rows();

// A row with its step.
struct RowStep {
  MeasuredRow row;
  StepProgram program;
  StepFacts facts;
};
absl::StatusOr<RowStep> PlanRow(const MeasuredRow& row, const proto::MachineProfile& profile);

// Returns the profile with the works of these steps in place of its own.
proto::MachineProfile WithWorksOf(proto::MachineProfile profile, const std::vector<const RowStep*>& steps);

}  // namespace shale
