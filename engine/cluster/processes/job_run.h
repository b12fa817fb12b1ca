// JobRun: a run of a job in its run folder, in one process or in several, as tools/train makes it.
//
//   created --Run--> the run has ended
//
// Create decides everything and allocates, but changes no file of a former run, so that a program can show the plan,
// and refuse, before Run begins.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/job_processes.h"
#include "engine/api/trainer.h"
#include "engine/api/trainer_options.h"
#include "engine/cluster/processes/run_start.h"
#include "engine/plan/config/job.h"
#include "engine/run/runtime/backend.h"
#include "engine/run/train/run.h"
#include "engine/run/train/run_folder.h"
#include "engine/run/train/starting_state.h"
#include "engine/text/documents/prepared_text.h"
#include "proto/machine.pb.h"

namespace shale {

struct JobRunOptions {
  ResumeOptions resume;
  TraceOptions trace;          // `path` gets the trace of all processes.
  PrintLine print;             // Prints a line for people. Only process 0 calls it.
  TextProgress text_progress;  // Of process 0.
  JobWith job_with = {};       // As in TrainerOptions.
};

// Used by one thread. All processes of the job make the same calls.
class JobRun {
 public:
  // Claims the run folder in process 0, decides there what depends on the folder or on this machine, and creates
  // backend and trainer. Borrows the processes. Returns errors that are those of all processes (IsAgreed), of the job,
  // and of Trainer::Create.
  static absl::StatusOr<std::unique_ptr<JobRun>> Create(JobProcesses& processes, const Job& job,
                                                        const JobRunOptions& options);

  Trainer& trainer() { return *trainer_; }
  // Returns the plan as the run folder records it: with what this process takes outside of the arenas.
  std::string PlanText() const;
  // Prints what the run begins with: the measured peak, the checkpoint or what the files of the model ask for, and
  // warnings about saves, for a process that has `grace_seconds` after a signal. Call it in process 0.
  void PrintBeginning(int64_t grace_seconds) const;

  // Writes the records of the run, trains to the end, and collects the traces of all processes.
  absl::Status Run();

  const Job& job() const { return job_; }
  // Returns where this process writes the trace of its ranks: process 0 to TraceOptions::path, the others into the run
  // folder until Run adds them to that.
  const std::string& trace_path() const { return options_.trace.path; }

 private:
  JobRun(JobProcesses& processes, const Job& job, const JobRunOptions& options);
  // Decides together with the others, and sets it in job_ and options_.
  absl::Status Decide(const ResumeOptions& resume);
  // Takes over what process 0 decided.
  absl::Status TakeDecision(const std::string& text);
  // Finds the profile of this machine, if it was measured, by which process 0 predicts its steps.
  void FindMachine();
  // Writes the records of the run, in process 0.
  absl::Status BeginFolder();
  absl::Status JoinTraces() const;
  void Print(absl::string_view line) const;

  JobProcesses& processes_;
  Job job_;
  const std::string trace_of_all_;
  const PrintLine print_;
  TrainerOptions options_;
  std::unique_ptr<RunFolder> folder_;  // Null but in process 0, as are the next three empty.
  std::string matmuls_line_;           // A line about what computes matmuls.
  std::string measured_;               // When the peak was measured, if it was.
  std::string hf_folder_;              // The folder of config.json and the tokenizer's files.
  RunSinks sinks_;
  StartLines start_lines_;
  std::shared_ptr<const proto::MachineProfile> machine_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace shale
