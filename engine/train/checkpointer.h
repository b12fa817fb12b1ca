// Saves and restores the state of a job's ranks.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/store.h"
#include "engine/planner/job_plan.h"
#include "engine/runtime/local_ranks.h"
#include "engine/state/local_state.h"
#include "sharding/comm/control_plane.h"

namespace shale {

struct CheckpointReport {
  int64_t step = 0;
  absl::Status status;    // Not OK: this checkpoint was not saved; earlier ones are unchanged.
  absl::Status thinning;  // Not OK: this checkpoint is saved, but an old one that is not kept could not be removed.
  std::string path;
  int64_t bytes = 0;        // Sum of its shard files.
  double seconds = 0;       // From the request until the checkpoint was committed.
  double stop_seconds = 0;  // The part of `seconds` during which no step could run.
};

// Saves what all processes of a job hold in one folder: each process writes the shards of its ranks, and process 0 the
// manifest, once all shards are written. Every process makes the same calls and gets the same reports.
//
// Borrows plan, ranks, state and control plane. Not thread-safe. A pending save has a thread of its own; the destructor
// waits for it.
class Checkpointer {
 public:
  // Opens `folder`, which all processes can reach, for checkpoints of `state`. FailedPrecondition if another writer has
  // it open.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(const JobPlan& plan, LocalRanks& ranks,
                                                              const LocalState& state, const std::string& folder,
                                                              const CheckpointStore::Options& options,
                                                              ControlPlane& control = OneProcess());
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;

  // See CheckpointStore.
  void DisregardAfter(int64_t step) {
    if (store_ != nullptr) store_->DisregardAfter(step);
  }

  // The caller fills in `manifest` except parameters, layout, update count and files. REQUIRES of Save and Start: no
  // save is pending; Take has returned the report of the previous one.
  //
  // Save returns when the checkpoint is committed or has failed.
  CheckpointReport Save(Manifest manifest);
  // Copies the state and returns; a thread writes the copy. Without a snapshot in the plan, Start calls Save, and Take
  // returns its report. An error means that the ranks failed and cannot go on.
  absl::Status Start(Manifest manifest);
  // Returns the report of the save that Start began. Returns nothing if there is none, or if it has not ended and
  // `wait` is kNo.
  enum class Wait { kNo, kYes };
  std::optional<CheckpointReport> Take(Wait wait);

 private:
  Checkpointer(const JobPlan& plan, const LocalRanks& ranks, const LocalState& state, FileSystem& files,
               ControlPlane& control)
      : plan_(plan), ranks_(ranks), state_(state), files_(files), control_(control) {}
  absl::Status Complete(Manifest& manifest) const;
  CheckpointReport Write(const Manifest& manifest, RankState::Source source, double started);
  struct Saved {
    std::string path;
    int64_t bytes = 0;  // Sum of all shard files.
  };
  // Saves through the store, in process 0.
  absl::StatusOr<Saved> Lead(const Manifest& manifest, RankState::Source source);
  // Takes part in the save of process 0.
  absl::StatusOr<Saved> Follow(RankState::Source source);
  // Returns whether the pending save has ended in all processes.
  bool EndedEverywhere() const;
  // Writes the shards of the local ranks into `folder`.
  absl::StatusOr<std::vector<SavedFile>> WriteShards(const std::string& folder, RankState::Source source);
  // Does the same, and gathers the files of all processes, in rank order.
  absl::StatusOr<std::vector<SavedFile>> WriteAllShards(const std::string& folder, RankState::Source source);

  const JobPlan& plan_;
  const LocalRanks& ranks_;
  const LocalState& state_;
  FileSystem& files_;
  ControlPlane& control_;
  std::unique_ptr<LocalProgram> snapshot_;        // Null if the plan has no snapshot.
  std::unique_ptr<CheckpointStore> store_;        // Null in all processes but 0.
  absl::Span<char> staging_;                      // Of the first local rank; all local ranks are saved through it.
  std::vector<std::unique_ptr<Stream>> streams_;  // By local rank: saved bytes are copied to the host on them.
  std::future<CheckpointReport> pending_;
};

}  // namespace shale
