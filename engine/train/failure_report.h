// What a process knows of a failed run, in a file that tools/inspect_run merges with those of the other processes.
//
//   {"process": 1, "pid": 17, "host": "a", "unix_seconds": 1.5e9, "step": 7, "held": 6, "saved": 4, "ranks": 4,
//    "shard_ranks": 4, "error": ...}
//   {"rank": 2, "stream": "reduce", "run": 7, "instruction": 20, "name": "ReduceScatterSum", "axis": "shard",
//    "unit": "head", "iteration": 0, "begun": 1.5e9, "finished": 1.5e9}
//
// The first line is about the process: `held` is the step after which its ranks held the state, and is missing if the
// update of the next one may have begun; `saved` is that of the last checkpoint, 0 if there is none. Each other line is
// about an instruction of one of its ranks, stream by stream and in order (InstructionNote). `axis` is there for
// collectives only, `begun` and `finished` if they are known.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/runtime/local_ranks.h"

namespace shale {

// Returns the path of the report of a process in a folder of reports.
std::string FailureReportPath(absl::string_view folder, int process);

// Where a run stood when it failed.
struct FailureMoment {
  int64_t step = 0;   // The step that had begun last.
  int64_t done = 0;   // The step that was done last.
  int64_t saved = 0;  // The step of the last checkpoint, as far as the process knows. 0: there is none.
};

// Returns the report of process `process`, whose run failed with `error`. Any thread may call it, also while the ranks
// run.
std::string FailureReport(LocalRanks& ranks, int process, const FailureMoment& moment, const absl::Status& error);

}  // namespace shale
