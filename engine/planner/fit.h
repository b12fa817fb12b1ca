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

namespace shale {

// The fields that can be found: the first two as large as possible, the ranks as few as possible.
enum class FitField { kMicroBatch, kSequenceLength, kRanks };
absl::string_view ToString(FitField field);  // "batch.micro_batch"
// Returns the field with this path. InvalidArgument lists the fields that there are.
absl::StatusOr<FitField> ParseFitField(absl::string_view path);

// A value of the field that was compiled and planned, and the cheapest way to run the job with it (ChooseAccumulation).
struct FitTrial {
  int64_t value = 0;
  absl::Status status;  // Not OK: the job cannot have this value, or cannot be planned with it.
  Accumulation accumulation = Accumulation::kAuto;
  int64_t arena_bytes = 0, host_bytes = 0;  // Of one rank.
  bool fits = false;
};

struct Fit {
  FitTrial best;
  // The next larger value, or, of ranks, the next smaller one, which does not fit. None if `best` is the last value
  // that makes sense: one rank, or the micro-batch that is all that a rank has in a step.
  std::optional<FitTrial> next;
  Budget budget;
};

// Finds the best value of `field`. `job_with` returns the job with another value of the field, checked like `job`
// itself; where it fails, for instance beyond the positions of a model, the values end. More ranks than global_batch
// has sequences are not tried.
//
// Bytes grow with the sequence length, and shrink with more ranks, so that bisection finds the value; it tries a few
// values beyond, because packing and padding are not exact. (Of a tiny model, shards are mostly padding.) With LAYERED
// bytes do not simply grow with the micro-batch, because a step keeps K of them: bisection finds the largest among the
// micro-batches with the same K, for each K.
//
// Errors:
//   InvalidArgument    There is no budget, or for ranks none that the job itself sets: ranks share what a machine has.
//   ResourceExhausted  No value fits.
//   The errors of PlanJob for `job` that have another cause than its memory.
absl::StatusOr<Fit> FindFit(FitField field, const Job& job,
                            absl::FunctionRef<absl::StatusOr<Job>(int64_t value)> job_with, const Machine& machine);

}  // namespace shale
