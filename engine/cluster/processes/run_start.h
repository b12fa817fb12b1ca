// What a run decides together with the other processes of its job before its first step, and the lines that it then
// says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/api/job_processes.h"
#include "engine/api/trainer_options.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/train/run_folder.h"
#include "engine/run/train/starting_state.h"

namespace shale {

// Returns what to do with a run folder that is not empty.
RunFolder::Existing ExistingFor(ResumeFrom from);

// Returns the folder with config.json and the tokenizer's files: the job's Hugging Face folder if it exists, and
// otherwise HfFolderOfRun.
std::string HfFolder(const Job& job, const RunFolder& folder, const ResumeOptions& resume);

// Returns the copy that a resumed run has of these files, or that of the run whose checkpoint is named. Returns an
// empty string if there is none, and if nothing is resumed.
std::string HfFolderOfRun(const RunFolder& folder, const ResumeOptions& resume);

// What a run took over from the run that it resumes.
struct KeptDecisions {
  std::string searched_job;  // The job from which it took the fields of runtime.search, as text. Empty: it took none.
  std::string line;          // For people, if the job leaves fields to a search: whether it took them, and why not.
};

// Takes what the run that is resumed had decided, if there is one and the job leaves it open, so that a resumed run
// computes the same bits: what computes matmuls, the accumulation, and the fields of runtime.search. If the job has
// another compute precision, it takes nothing; if it divides a step in another way, or the rules refuse the decisions,
// only what computes matmuls. The bits change then anyway, and other choices may be better.
KeptDecisions KeepDecisions(const RunFolder& folder, const ResumeOptions& resume, Job& job);

// Decides what MFU compares with, and sets it in `options`. If it has to be measured, does so in process 0, which
// reports it, for a host with `ranks_on_host` ranks, and sets `measured` to the time there. A peak that a former run
// measured counts as none.
absl::Status DecidePeakFlops(JobProcesses& processes, const Backend& backend, const Job& job, int64_t ranks_on_host,
                             TrainerOptions& options, std::string& measured);

// Returns the text of the resolved job as a run folder records it: with the peak, if that was measured, and the time.
std::string RecordedJob(Job job, double peak_flops, const std::string& measured);

// Returns a warning if a save of this plan's state probably takes longer than the `grace_seconds` that a process has
// after a signal: writes at most 16 MiB into the run folder, and concludes from the time that this takes how long a
// host takes for the parts of `ranks_on_host` ranks. Empty if it does not, or if the folder cannot be written.
std::string SlowSaveWarning(const JobPlan& plan, const RunFolder& folder, int64_t ranks_on_host, int64_t grace_seconds);

// Returns a warning if the folder's disk has less space free than the checkpoints of this plan and job will take beside
// those that are there. Empty if it has enough, or if the system does not say.
std::string DiskSpaceWarning(const JobPlan& plan, const CheckpointConfig& config, const RunFolder& folder);

// Passes all events on to `next`, which it borrows. If the plan has at least kLargeArenaBytes for a rank, calls `print`
// with a line about the plan, and with one as each part of the start begins.
class StartLines : public EventSink {
 public:
  static constexpr int64_t kLargeArenaBytes = int64_t{1} << 30;

  StartLines(EventSink& next, std::function<void(absl::string_view)> print) : next_(next), print_(std::move(print)) {}

  void Take(const RunEvent& event) override;

 private:
  EventSink& next_;
  const std::function<void(absl::string_view)> print_;
  bool large_ = false;
};

}  // namespace shale
