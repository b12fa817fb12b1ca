// JobProcesses: the processes that train one job together. A launcher starts them: torchrun, mpirun, srun, Kubernetes,
// or tools/launch (engine/cluster/launch/process_place.h says which variables it reads).
//
//   SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<JobProcesses> processes, JobProcesses::Join(job));
//   const absl::StatusOr<std::unique_ptr<Trainer>> trainer =
//       processes->CreateTrainer(job, {.checkpoint_folder = "/shared/checkpoints"});
//   return processes->End(trainer.ok() ? (*trainer)->Run({}) : trainer.status());
//
// A process that no launcher started is alone: it holds all ranks as threads, and the same lines train the same job.
//
// JobRun: a run of the job in a run folder, with the records and the lines for people that tools/train has.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/api/text_progress.h"
#include "engine/api/trainer.h"
#include "engine/api/trainer_options.h"

namespace shale {

class JoinedProcesses;
class RunInFolder;

// What the launcher of this process says of it. Alone, it is process 0 of 1, and `launcher` is empty.
struct LaunchedProcess {
  std::string launcher;  // For messages: "torchrun", "Open MPI".
  int process = 0;       // From 0 to processes - 1.
  int processes = 1;
};
// Reads the environment, and joins nothing. Returns InvalidArgument if variables of launchers are wrong.
absl::StatusOr<LaunchedProcess> FindLaunchedProcess();

// Returns whether all processes of the job have this error, so that one of them can speak for all.
bool IsAgreed(const absl::Status& error);

// Writes an error into the file that torchrun names in TORCHELASTIC_ERROR_FILE, if it does, so that torchrun reports
// the error as that of this process. JobProcesses does so itself. Does nothing if the file cannot be written.
void WriteErrorFile(const absl::Status& error);

struct JobProcessesOptions {
  // Should end this process. It is called, on a thread of its own, if the process is still there two seconds after the
  // job has failed (half a second if the job had not begun), because a call may be waiting for a process that is gone.
  // `why` is the failure, and `elsewhere` says whether another process is its cause. Empty: the process goes on.
  std::function<void(const absl::Status& why, bool elsewhere)> end_process;
  // Gets lines for people, about the network. Empty: they are dropped.
  std::function<void(absl::string_view line)> report;
};

// Used by one thread. Must be created before other threads change the environment, and destroyed before the program
// ends. A failure of the job in another process aborts the trainer (Trainer::Abort), so that no call waits for ever.
class JobProcesses {
 public:
  // Joins the other processes of the job, if a launcher started this one. All must have the same program and number of
  // ranks. Also sets the environment variables that the job's devices need. Returns Aborted or DeadlineExceeded if
  // another process is missing or has failed, AlreadyExists if another program has the port, and InvalidArgument if
  // variables of the launcher are wrong.
  static absl::StatusOr<std::unique_ptr<JobProcesses>> Join(const Job& job, JobProcessesOptions options = {});
  // Tells the other processes that this one cannot join them, because of an error that it found before it could.
  // Otherwise they would wait for it. Takes some seconds if they do not come.
  static void Decline(const absl::Status& error);
  // Ends the job in all processes, unless End was called.
  ~JobProcesses();
  JobProcesses(const JobProcesses&) = delete;

  // Returns a line that says which process of the job this is, and which variables of launchers were found but not
  // used. Empty if there are no such variables.
  std::string Describe() const;
  int process() const;  // From 0 to processes() - 1.
  int processes() const;
  bool alone() const { return processes() == 1; }
  bool leads() const { return process() == 0; }  // Process 0 speaks for all.

  // Creates the trainer of this process's ranks, and a backend unless the options have one. Sets the options `ranks`,
  // `ranks_on_host`, `create_spanning_group` and `control`. All processes must give the same job, and the same other
  // options. Call it once. The trainer must be destroyed after End, and before this object.
  absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(Job job, TrainerOptions options);
  // Calls `work` in process 0 and returns its result in every process. All processes make the same call.
  absl::StatusOr<std::string> InProcessZero(absl::FunctionRef<absl::StatusOr<std::string>()> work);

  // Ends the job for this process, with the result of its work. After OK, waits until no other process needs this one.
  // After an error that only this process has, ends the job in all of them. Returns OK, or why the job failed. If this
  // process failed only because another one had failed before, returns the error of the other one (failed_elsewhere).
  // All processes call it.
  absl::Status End(const absl::Status& result);
  // Returns whether the job failed because of another process.
  bool failed_elsewhere() const;

 private:
  friend class RunInFolder;  // Does more between the four steps of CreateTrainer.
  struct Watch;
  JobProcesses(std::unique_ptr<JoinedProcesses> joined, JobProcessesOptions options);
  void WatchOthers();
  void SetTrainer(Trainer* trainer);

  // The four steps of CreateTrainer. All processes must call them, in this order.
  //
  // Checks that all have the same job, as far as can be said before it is planned.
  absl::Status CheckSame(const Job& job);
  // Gives every rank an equal share of the threads of the smallest host, if the job leaves that open, and sets the
  // options that CreateTrainer sets.
  absl::Status Prepare(Job& job, TrainerOptions& options);
  // Creates the backend of this process. If that fails in any process, returns an error in all of them.
  absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const Job& job);
  // Creates the trainer, with `options.backend`. A failure of the job in another process aborts it from then on.
  absl::StatusOr<std::unique_ptr<Trainer>> CreateWatched(const Job& job, const TrainerOptions& options);

  const std::unique_ptr<JoinedProcesses> joined_;
  const JobProcessesOptions options_;
  const std::shared_ptr<Watch> watch_;
  bool ended_ = false;
};

struct JobRunOptions {
  ResumeOptions resume;
  TraceOptions trace;                                 // `path` gets the trace of all processes.
  std::function<void(absl::string_view line)> print;  // Prints a line for people. Only process 0 calls it.
  TextProgress text_progress;                         // Of process 0.
  JobWith job_with = {};                              // As in TrainerOptions.
};

// A run of a job in its run folder (telemetry.run_folder): with the records and checkpoints that tools read there, the
// sinks of the job, and lines for people.
//
//   created --Run--> the run has ended
//
// Create decides everything and allocates, but changes no file of a former run, so that a program can show the plan,
// and refuse, before Run begins. Used by one thread. All processes of the job make the same calls.
class JobRun {
 public:
  // Claims the run folder in process 0, decides there what depends on the folder or on this machine, and creates
  // backend and trainer. Borrows the processes. Returns errors that are those of all processes (IsAgreed), of the job,
  // and of Trainer::Create.
  static absl::StatusOr<std::unique_ptr<JobRun>> Create(JobProcesses& processes, const Job& job,
                                                        const JobRunOptions& options);
  ~JobRun();

  Trainer& trainer();
  // Returns the plan as the run folder records it: with what this process takes outside of the arenas.
  std::string PlanText() const;
  // Prints what the run begins with: the peak FLOP/s if they were measured, the predicted time of a step, and the
  // checkpoint that the run resumes from, or remarks on a job that starts. Warns if a save takes longer than the
  // `grace_seconds` that a process has after a signal, or if the disk has too little space. Call it in process 0.
  void PrintBeginning(int64_t grace_seconds) const;
  // Writes the records of the run, trains to the end, collects the traces of all processes, and prints the table of the
  // trace of rank 0.
  absl::Status Run();

 private:
  explicit JobRun(std::unique_ptr<RunInFolder> run);
  const std::unique_ptr<RunInFolder> run_;
};

}  // namespace shale
