// Decides the fields that a job leaves to a search.
//
// [Note: fields that a run decides] A job may leave fields to a search (runtime.search). A run calls DecideFields
// before it plans, in one process for all, and sets the fields as it says. What is then planned, recorded and saved is
// a job that leaves nothing to a search. tools/plan does the same where it knows the seconds of the machine. Whatever
// else plans or runs a job takes it as it is written.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/job.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/draft.h"

namespace shale {

// The setting with which a job leaves nothing to a search, as --set takes it.
inline constexpr char kNothingSearched[] = "runtime.search=[]";

struct DecidedFields {
  // What differs from the job, as --set takes it, in this order. The last one is kNothingSearched.
  std::vector<std::string> settings;
  std::string why;  // For people: what was found, and a row for each field. Ends in a newline.
};

// Searches for the best values of the fields in job.runtime.search, for the job with what its data decide
// (ApplyDataFacts), and for 20 seconds at most. `job_with` is as in SearchQuery. Returns the errors of
// CheckSearchedFields and FindFastest. Their messages begin with "runtime.search: ". REQUIRES: the job leaves
// some field to a search.
absl::StatusOr<DecidedFields> DecideFields(Job job, const DataFacts& data, const Machine& machine,
                                           const JobWith& job_with = nullptr, WorkLimits limits = {});

// Returns `job` with the values that `decided` has of the fields in job.runtime.search, which is then empty. A choice
// brings along the other fields that its settings set (Option::all).
Job WithSearchedFieldsOf(const Job& decided, const Job& job);

}  // namespace shale
