// Plans a job: decides everything that the job leaves open, and says whether a machine has room for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/api/job.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/variant.h"

namespace shale {

struct Machine;  // engine/api/backend.h

// A job in which everything is decided, with its plan. ResolveJob and ResolveJobForAnywhere make it of a job as it was
// written, and only such a job can run. Keep it const, because the plan would not follow a change of the job.
struct ResolvedJob {
  Job job;
  JobPlan plan;
};

// Decides, in this order: the format of the data and the vocabulary (from `data`), the number of tokens in a chunk of
// the loss, the accumulation and everything else in the plan, the threads of a rank and what computes matmuls (both
// from `machine`). What the job itself sets stays as it is. Allocates nothing on devices. The result does not refer to
// `machine`.
//
// Returns the errors of ValidateJob, and then those of PlanJob, to which it passes `limits` and `refusal`. A refusal
// proposes settings. `job_with` loads the job with such settings, before anything is decided; settings with which the
// job does not load are not proposed. If `job_with` is empty, the settings change the fields of `job` (WithOverrides).
absl::StatusOr<ResolvedJob> ResolveJob(Job job, const DataFacts& data, const Machine& machine,
                                       const WorkLimits& limits = {}, Refusal* refusal = nullptr,
                                       const JobWith& job_with = {});

// Does the same for a job that may run on another machine than `here`, so that only the budgets that the job sets
// count. A job that does not fit them is planned all the same, and `refusal` says why it does not fit. If `here` is too
// small for the job, `remark` says so (PlanJobForAnywhere). The threads of a rank are those of `here`.
absl::StatusOr<ResolvedJob> ResolveJobForAnywhere(Job job, const DataFacts& data, const Machine& here,
                                                  std::string& remark, std::optional<Refusal>& refusal,
                                                  const JobWith& job_with = {});

// How much is generated at once. Together with the model, this decides the size of the cache of generation.
struct GenerationSize {
  int64_t sequences = 1;  // B, sequences that are generated at once.
  int64_t positions = 0;  // Tokens that a sequence may have at a time. 0: the job's sequence_length.
};

// Stands for "no limit" where a number of positions limits a sequence. A sequence has no limit if each token sees only
// a window of the tokens before it.
inline constexpr int64_t kNoLastPosition = std::numeric_limits<int32_t>::max();

// Decides whether a machine has room for a job that somebody else wrote, before anything is allocated. For schedulers
// and services.
//
// [Note: what a job can cost] Admit opens no file and no device, and takes no more than its options allow, whatever the
// job is:
// - Time: it looks at the deadline and at `cancelled` while it compiles and proves, unit by unit and instruction by
//   instruction, and before each other stage of planning. The longest stage that it does not interrupt, the search for
//   addresses, takes about 4 us for each estimated instruction on a core of an Intel Xeon at 2.6 GHz: a quarter of a
//   second for the longest program that the default options allow.
// - Memory: at most kPlanningBytes + kPlanningBytesPerInstruction for each estimated instruction. A job whose estimate
//   is beyond AdmissionOptions::memory_bytes is refused before its model is built. The estimate of a model that a
//   program brings is as good as its CustomModel::layers.
// tools/bench/admission.cc measures both with jobs that are hard to plan.
// tests/engine/plan/planner/admission_limits_test.cc checks their memory.

// See [Note: what a job can cost].
inline constexpr int64_t kPlanningBytes = int64_t{16} << 20;
inline constexpr int64_t kPlanningBytesPerInstruction = int64_t{16} << 10;

// The machine that a job would run on. It need not be this one.
struct AdmissionMachine {
  // Required. Returns what planning must know of such a machine, for example how much scratch the ops of the job need
  // there. The CPUs of the machine run `hardware_threads` threads at once. Admit does not read default_budget and
  // most_ranks of the result. PlanningMachine (engine/api/backend.h) is such a function. Any thread may call it.
  std::function<absl::StatusOr<Machine>(const Job& job, int64_t hardware_threads)> planning;
  DeviceType device = DeviceType::kCpu;                      // What the ranks run on.
  int64_t hardware_threads = 1;                              // Of its CPUs, for all ranks together.
  int64_t most_ranks = std::numeric_limits<int64_t>::max();  // The ranks that it has room for.
  // The bytes that it has for the arena of one rank, and for what one rank offloads to host memory. The job may set
  // smaller budgets. A larger one does not count.
  int64_t budget_bytes = std::numeric_limits<int64_t>::max();
  int64_t host_budget_bytes = std::numeric_limits<int64_t>::max();
};

struct AdmissionOptions {
  absl::Duration time_limit = absl::Seconds(10);
  int64_t memory_bytes = int64_t{1} << 30;       // Memory that planning may take.
  int64_t job_bytes = int64_t{16} << 10;         // The longest job, as it is given or as ResolvedJobText prints it.
  const std::atomic<bool>* cancelled = nullptr;  // Set by any thread to end the call. Borrowed; may be null.
  DataFacts data;                                // What the caller knows of the job's data, which are not read.
};

struct Admission {
  enum class Verdict {
    kFits,        // `resolved` is the job with its plan.
    kDoesNotFit,  // `refusal` says what is missing and what would make it fit.
    kInvalid,     // `errors` says what is wrong with the job.
  };
  Verdict verdict = Verdict::kInvalid;
  std::string text;  // The verdict for people. With kInvalid, one line for each error.
  std::vector<JobError> errors;
  // Absent if the job is too large for any machine, or asks for a device that the machine does not have.
  std::optional<Refusal> refusal;
  std::optional<ResolvedJob> resolved;  // With kDoesNotFit: only in the verdict of PlannedThoughRefused.
  std::vector<std::string> remarks;     // What the owner of the job should know besides.
};

// Return the verdicts on a job with a plan, and on one without. REQUIRES: `status` is InvalidArgument or
// ResourceExhausted. With InvalidArgument, `errors` are its parts, if it has any. With ResourceExhausted, `refusal` is
// why the job does not fit, if it was planned.
Admission Admitted(ResolvedJob resolved);
Admission Refused(const absl::Status& status, std::vector<JobError> errors, std::optional<Refusal> refusal);
// Returns the verdict on a job that does not fit, with the plan of PlanJobOfAnySize for people and programs to look at.
Admission PlannedThoughRefused(Refusal refusal, ResolvedJob resolved);

// Plans a job, in text or binary, for `machine`. `overrides` are as in LoadJob. A second function does the same for a
// job that was parsed; use it for the jobs of a program that brings its own model (SetModel).
//
// Errors, when there is no verdict:
//   Cancelled          `cancelled` was set.
//   DeadlineExceeded   Planning reached the time limit. If only the search for ways out reached it, there is a verdict,
//                      with Refusal::search_ended_early.
//   ResourceExhausted  The job is too long, or planning it would take more memory than the options allow.
//   Errors of AdmissionMachine::planning other than InvalidArgument, which is an error of the job.
//
// Any number of threads may call these at once, each with limits of its own.
absl::StatusOr<Admission> Admit(absl::string_view job, const AdmissionMachine& machine,
                                const AdmissionOptions& options = {}, const std::vector<std::string>& overrides = {});
absl::StatusOr<Admission> Admit(const Job& job, const AdmissionMachine& machine, const AdmissionOptions& options = {});

}  // namespace shale
