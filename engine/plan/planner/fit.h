// Finds the largest batch, or the smallest number of ranks, with which a job fits its budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/variant.h"

namespace shale {

struct Fit {
  int64_t value = 0;  // The best value of the field.
  Variant best;       // The job with it, which fits.
  // The job with the next larger value (for ranks, the next smaller one), which does not fit. Absent if `value` is the
  // last one that makes sense: one rank, or a micro-batch of all sequences that a rank has in a step.
  std::optional<Variant> next;
  std::string last;  // Why there is no next value: "there are no fewer ranks". Empty if there is one.
  Budget budget;
};

// Returns "batch.micro_batch=12 fits: SHARDED needs 31.2 GiB (33,500,000,000 bytes) per rank, budget 32.0 GiB; 13 needs
// 33.5 GiB (36,000,000,000 bytes)".
std::string FitText(const Fit& fit);

// How many values a search tries. Each takes the time of a plan.
enum class FitEffort {
  kThorough,  // Tries all values that the comment of FindFit describes.
  kQuick,     // Only bisects. Assumes that the bytes grow with the batch and shrink with more ranks.
};

// Returns the paths of the fields that FindFit searches.
std::vector<std::string> FitFields();
// Returns OK if `path` is one of them, otherwise InvalidArgument with their list.
absl::Status CheckFitField(absl::string_view path);

// Returns the best value of the field at `path` with which the job fits: the largest batch.micro_batch or
// batch.sequence_length, or the fewest sharding.ranks. `job_with` returns the job with a value of the field, checked
// like `job` itself; empty: sets the field of `job`. A value for which it returns an error, such as a sequence longer
// than the model has positions, counts as one that does not fit. Does not try more ranks than the larger of
// global_batch and the job's own ranks.
//
// The bytes grow with the sequence length and shrink with more ranks, so bisection finds the value. It also tries a few
// values beyond, because packing and padding make this inexact. (The shards of a tiny model are mostly padding.) With
// LAYERED a step keeps K micro-batches, so the bytes do not simply grow with the micro-batch. For each K, bisection
// then finds the largest of the micro-batches with this K.
//
// Errors:
//   InvalidArgument    FindFit does not search the field. There is no budget; or the field is ranks, and the job does
//                      not set the budget itself (the default budget depends on the ranks, which share a machine's
//                      memory), or the job offloads and does not set the host budget itself.
//   ResourceExhausted  No value fits.
//   The errors of PlanJob for `job` whose cause is not its memory, and those of `limits`.
absl::StatusOr<Fit> FindFit(absl::string_view path, const Job& job, const JobWith& job_with, const Machine& machine,
                            FitEffort effort = FitEffort::kThorough, const WorkLimits& limits = {});

}  // namespace shale
