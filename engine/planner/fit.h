// Finds the largest batch, or the smallest number of ranks, with which a job fits its budget.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/config/job.h"
#include "engine/memory/machine.h"
#include "engine/program/work_limits.h"

namespace shale {

// The fields whose best value can be found: the largest micro-batch or sequence length, or the fewest ranks.
enum class FitField { kMicroBatch, kSequenceLength, kRanks };
absl::string_view ToString(FitField field);  // "batch.micro_batch"
// Returns the field with this path. Returns InvalidArgument, with a list of the fields, if there is none.
absl::StatusOr<FitField> ParseFitField(absl::string_view path);

// The result of planning the job with one value of the field, with the accumulation that ChooseAccumulation takes for
// it.
struct FitTrial {
  int64_t value = 0;
  absl::Status status;  // Not OK if the job cannot have this value or cannot be planned with it.
  Accumulation accumulation = Accumulation::kAuto;
  int64_t arena_bytes = 0, host_bytes = 0;  // Of one rank.
  bool fits = false;
};

struct Fit {
  FitTrial best;
  // The next larger value (for ranks, the next smaller one), which does not fit. Absent if `best` is the last value
  // that makes sense: one rank, or a micro-batch of all sequences that a rank has in a step.
  std::optional<FitTrial> next;
  Budget budget;
};

// How many values a search tries. Each takes the time of a plan.
enum class FitEffort {
  kThorough,  // Tries all values that the comment of FindFit describes.
  kQuick,     // Only bisects. Assumes that the bytes grow with the batch and shrink with more ranks.
};

// Returns the best value of `field` with which the job fits. `job_with` returns the job with another value of the
// field, checked like `job` itself. A value for which it returns an error, such as a sequence longer than the model has
// positions, counts as one that does not fit. FindFit does not try more ranks than the larger of global_batch and the
// job's own ranks.
//
// The bytes grow with the sequence length and shrink with more ranks, so bisection finds the value. It also tries a few
// values beyond, because packing and padding make this inexact. (The shards of a tiny model are mostly padding.) With
// LAYERED a step keeps K micro-batches, so the bytes do not simply grow with the micro-batch. For each K, bisection
// then finds the largest of the micro-batches with this K.
//
// Errors:
//   InvalidArgument    There is no budget; or the field is ranks, and the job does not set the budget itself (the
//                      default budget depends on the ranks, which share a machine's memory), or the job offloads and
//                      does not set the host budget itself.
//   ResourceExhausted  No value fits.
//   The errors of PlanJob for `job` whose cause is not its memory, and those of `limits`.
absl::StatusOr<Fit> FindFit(FitField field, const Job& job,
                            absl::FunctionRef<absl::StatusOr<Job>(int64_t value)> job_with, const Machine& machine,
                            FitEffort effort = FitEffort::kThorough, const WorkLimits& limits = {});

}  // namespace shale
