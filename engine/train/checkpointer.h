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
#include "engine/runtime/world.h"
#include "engine/train/rank_state.h"

namespace shale {

struct CheckpointReport {
  int64_t step = 0;
  absl::Status status;    // Not OK: there is no such checkpoint; those before it are as they were.
  absl::Status thinning;  // Not OK: it stands, but an older one that is no longer wanted could not be removed.
  std::string path;
  int64_t bytes = 0;        // Of its shard files.
  double seconds = 0;       // From the request until it was committed.
  double stop_seconds = 0;  // Of these, how long no step could run.
};

// Borrows plan and world. One thread; a save that is under way has a thread of its own and is waited for by the
// destructor.
class Checkpointer {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(const JobPlan& plan, World& world,
                                                              const std::string& folder,
                                                              const CheckpointStore::Options& options);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;

  const std::string& folder() const { return store_->folder(); }

  // See CheckpointStore.
  void DisregardAfter(int64_t step) { store_->DisregardAfter(step); }

  // `manifest` brings what is not known here: all but parameters, layout, update count and files. A save that is under
  // way must have been taken.
  //
  // Returns when the checkpoint is committed, or could not be.
  CheckpointReport Save(Manifest manifest);
  // Copies the state and returns; a thread writes the copy. Without a snapshot in the plan it is Save, whose report
  // Take gives. An error is one of the ranks', which cannot go on.
  absl::Status Start(Manifest manifest);
  // The report of the save that Start began: nothing if there is none, or if it is still under way and not waited for.
  enum class Wait { kNo, kYes };
  std::optional<CheckpointReport> Take(Wait wait);

 private:
  Checkpointer(const JobPlan& plan, World& world) : plan_(plan), world_(world) {}
  absl::Status Complete(Manifest& manifest) const;
  CheckpointReport Write(const Manifest& manifest, RankState::Source source, double started);

  const JobPlan& plan_;
  World& world_;
  std::vector<RankState> ranks_;
  std::unique_ptr<WorldProgram> snapshot_;  // Null: none is planned.
  std::unique_ptr<CheckpointStore> store_;
  absl::Span<char> staging_;                      // Of rank 0.
  std::vector<std::unique_ptr<Stream>> streams_;  // By rank: what is saved comes to the host on them.
  std::future<CheckpointReport> pending_;
};

// The state of every rank of a world, for the persistent buffers of `program`.
std::vector<RankState> RankStates(const PlannedProgram& program, World& world);

// Restores all ranks, each on its own thread and through its staging (kReadStagingBytes), from a checkpoint whose
// parameters are the model's. See RankState::Restore. REQUIRES: no save is under way, which uses rank 0's.
absl::Status RestoreRanks(const CheckpointReader& checkpoint, bool values_only, World& world,
                          std::vector<RankState>& ranks);

// Likewise sets their values. `read` is called by several threads.
absl::Status FillRanks(RankState::ReadValues read, World& world, std::vector<RankState>& ranks);

}  // namespace shale
