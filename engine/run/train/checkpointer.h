// Checkpointer saves the state of a job's ranks. (LocalState::Restore reads it back.)
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/checkpoint.h"
#include "engine/api/events.h"
#include "engine/files/checkpoint/store.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/state/local_state.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Saves the state of all processes of a job in one folder. Each process writes the shards of its ranks; once all shards
// are written, process 0 writes the manifest. Every process must make the same calls. A save succeeds in all of them or
// in none.
//
// Borrows plan, ranks, state and control plane. Not thread-safe. A pending save has a thread of its own; the destructor
// waits for it.
class Checkpointer {
 public:
  // Opens `folder`, which all processes must be able to reach, for checkpoints of `state`. Returns FailedPrecondition
  // if another writer has it open.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(const JobPlan& plan, LocalRanks& ranks,
                                                              const LocalState& state, const std::string& folder,
                                                              const CheckpointStore::Options& options,
                                                              ControlPlane& control = OneProcess());
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;

  // Calls CheckpointStore::DisregardAfter in process 0, and does nothing in the others.
  void DisregardAfter(int64_t step) {
    if (store_ != nullptr) store_->DisregardAfter(step);
  }

  // Save and Start take a manifest in which the caller has set step, tokens, samples, seed, job and data, and base if
  // the frozen parameters are still those that it has: a checkpoint then leaves them out. They set the other fields.
  // REQUIRES: no save is pending, that is, Take has returned the report of the previous Start.
  //
  // Returns when the checkpoint is committed or has failed.
  CheckpointReport Save(Manifest manifest);
  // Copies the state and returns; a thread writes the copy. If the plan has no snapshot, calls Save instead, whose
  // report Take returns. Returns an error if the ranks failed and cannot go on.
  absl::Status Start(Manifest manifest);
  // Returns the report of the save that Start began. Returns nothing if there is none, or if it has not ended and
  // `wait` is kNo.
  enum class Wait { kNo, kYes };
  std::optional<CheckpointReport> Take(Wait wait);
  // Waits until this process has written its part of a pending save, if there is one. Take still returns its report.
  // A save reads frozen parameters where they lie, so call it before they are written.
  void WaitForWriting() const {
    if (pending_.valid()) pending_.wait();
  }

 private:
  Checkpointer(const JobPlan& plan, const LocalRanks& ranks, const LocalState& state, FileSystem& files,
               ControlPlane& control)
      : plan_(plan), ranks_(ranks), state_(state), files_(files), control_(control) {}
  // Sets the fields of the manifest that the caller leaves to this class, except ranks and files.
  absl::Status Complete(Manifest& manifest) const;
  // Writes the checkpoint, in every process. `started` is the time at which the save was requested.
  CheckpointReport Write(const Manifest& manifest, RankState::Source source, double started);
  struct Saved {
    std::string path;
    int64_t bytes = 0;  // Size of all shard files together.
  };
  // Runs the save in process 0, through the store.
  absl::StatusOr<Saved> Lead(const Manifest& manifest, RankState::Source source);
  // Takes part in the save in every other process.
  absl::StatusOr<Saved> Follow(const Manifest& manifest, RankState::Source source);
  // Returns whether the pending save has ended in all processes.
  bool EndedEverywhere() const;
  // Writes the shards of the local ranks into `folder`.
  absl::StatusOr<std::vector<SavedFile>> WriteShards(const std::string& folder, const Manifest& manifest,
                                                     RankState::Source source);
  // Writes the shards of the local ranks and returns the files of all processes, in rank order.
  absl::StatusOr<std::vector<SavedFile>> WriteAllShards(const std::string& folder, const Manifest& manifest,
                                                        RankState::Source source);

  const JobPlan& plan_;
  const LocalRanks& ranks_;
  const LocalState& state_;
  FileSystem& files_;
  ControlPlane& control_;
  std::unique_ptr<LocalProgram> snapshot_;        // Null if the plan has no snapshot.
  std::unique_ptr<CheckpointStore> store_;        // Null in all processes but 0.
  absl::Span<char> staging_;                      // That of the first local rank. Shards of all local ranks use it.
  std::vector<std::unique_ptr<Stream>> streams_;  // By local rank. They copy the saved bytes to the host.
  std::future<CheckpointReport> pending_;
};

}  // namespace shale
