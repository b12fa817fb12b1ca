// RunInFolder: what a JobRun (engine/api/job_processes.h) does.
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

// Used as a JobRun is, whose functions of the same names say what these do.
class RunInFolder {
 public:
  static absl::StatusOr<std::unique_ptr<RunInFolder>> Create(JobProcesses& processes, const Job& job,
                                                             const JobRunOptions& options);

  Trainer& trainer() { return *trainer_; }
  std::string PlanText() const;
  void PrintBeginning(int64_t grace_seconds) const;
  absl::Status Run();

 private:
  RunInFolder(JobProcesses& processes, const Job& job, const JobRunOptions& options);
  // Decides together with the others, and sets it in job_ and options_.
  absl::Status Decide(const ResumeOptions& resume);
  // Takes over what process 0 decided.
  absl::Status TakeDecision(const std::string& text);
  // Finds a profile of this machine or of its class, by which process 0 predicts its steps.
  void FindMachine();
  // Writes the records of the run, in process 0.
  absl::Status BeginFolder();
  absl::Status JoinTraces() const;
  void PrintTrace() const;
  void Print(absl::string_view line) const;

  JobProcesses& processes_;
  Job job_;
  const std::string trace_of_all_;
  const PrintLine print_;
  TrainerOptions options_;  // Process 0 writes the trace to its place, others into the run folder until all are joined.
  std::unique_ptr<RunFolder> folder_;  // Null but in process 0, as are the next three empty.
  std::string matmuls_line_;           // A line about what computes matmuls.
  std::string search_line_;            // A line about what the run that is resumed had searched.
  std::string measured_;               // When the peak was measured, if it was.
  std::string hf_folder_;              // The folder of config.json and the tokenizer's files.
  RunSinks sinks_;
  StartLines start_lines_;
  std::shared_ptr<const proto::MachineProfile> machine_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace shale
