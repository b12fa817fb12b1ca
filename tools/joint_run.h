// What `train` does together with the other processes of its job. Alone, it does the same by itself.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/backends/job_backend.h"
#include "engine/config/job.h"
#include "engine/launch/world.h"
#include "engine/train/run_folder.h"
#include "engine/train/trainer.h"

namespace shale {

inline constexpr int kExitPeer = 3;  // Another process of the job failed.

// Joins the other processes of the job, if a launcher started this one.
absl::StatusOr<std::unique_ptr<World>> JoinWorld(const Job& job);

// Returns the exit code of a process that could not join the others: kExitPeer if one of them is missing or has failed;
// otherwise as StartExitCode.
int JoinExitCode(const absl::Status& error);

// Returns the exit code of a run that an error ended before its first step: kExitFailed if the same call may succeed
// later, as after an error of the network, which launchers then try; kExitUsage if the command line, the job, its data
// or the launch must change first.
int StartExitCode(const absl::Status& error);

// What process 0 decided and owns.
struct Decided {
  std::unique_ptr<RunFolder> folder;  // Null in other processes.
  std::string hf_folder;              // HfFolder.
  std::string products;               // A line about what computes matmuls. Empty in other processes.
};

// Claims the run folder in process 0, and decides there, for all processes, what depends on the folder or on this
// machine. Sets it in the job and in the options, with what the trainer must know of the other processes. Errors are
// those of all processes (IsAgreed), or of the job.
absl::StatusOr<Decided> DecideTogether(World& world, const ResumeOptions& resume, Job& job, TrainerOptions& options);

// Returns where this process writes the trace of its ranks: process 0 to `path`, which "" leaves out, and the others
// into the run folder. JoinTraces adds those to the one in `path`. All processes call it after their runs, if path is
// not ""; `traced` says in process 0 whether any step was traced.
std::string TracePath(const World& world, const Job& job, const std::string& path);
absl::Status JoinTraces(World& world, const Job& job, const std::string& path, bool traced);

// Returns what the backend of this process must know of the others. Borrows the world.
BackendPlace PlaceOfBackend(World& world);

// Lets the failure of the job in another process abort the trainer. If this process then does not end by itself,
// because a call waits for what never comes, ends it after two seconds, or half a second if there is no trainer yet.
class PeerWatch {
 public:
  // Ends the process, if need be, also after its own destruction.
  explicit PeerWatch(World& world);
  ~PeerWatch() { Set(nullptr); }
  PeerWatch(const PeerWatch&) = delete;
  // Names the trainer that a failure aborts; null before it is destroyed.
  void Set(Trainer* trainer);
  // Ends the job in all processes after an error of this one, or after one that all have, and says why on stderr.
  // Returns the exit code: `exit_code`, or kExitPeer if another process made the job fail. Forgets the trainer, which
  // must still live.
  int EndAfterError(const absl::Status& error, int exit_code);

 private:
  struct State {
    std::shared_mutex mutex;  // Guards the next three fields. Held shared, it keeps the trainer alive.
    bool starts = true;       // There has been neither a trainer nor an error. Until then the world exists.
    Trainer* trainer = nullptr;
    absl::Status why;            // The failure, if it has come.
    std::atomic<int> exit_code;  // If this process made the job fail.
    std::atomic<bool> said = false;
  };
  World& world_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace shale
