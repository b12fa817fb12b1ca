// Decides whether the service takes a job, before anything is allocated for it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace service {

// What all running jobs may take together.
struct Budget {
  int64_t threads = 1;  // That compute. A trainer has others, which wait for them.
  int64_t bytes = 0;  // Arenas and pinned memory of all ranks. The code and the libraries, which jobs share, are extra.
};

struct AdmittedJob {
  std::string job_text;  // With every default decided, so that the job computes the same bits whenever it goes on.
  std::string plan;      // What planning said, in a line.
  int64_t threads = 0;
  int64_t bytes = 0;
};

// Plans a job that a client sent. Relative paths in it start at `data_folder`, an absolute path. Returns
// InvalidArgument if the job is wrong or asks for what the service does not do, and ResourceExhausted if it does not
// fit the budget, or if planning it would take too long or too much memory. Several threads may call it, but each call
// may take as much memory as the job's plan needs.
absl::StatusOr<AdmittedJob> AdmitJob(absl::string_view job, const std::string& data_folder, const Budget& budget);

// Returns OK if the budget holds a job that runs alone, else ResourceExhausted.
absl::Status CheckBudget(int64_t threads, int64_t bytes, const Budget& budget);

}  // namespace service
