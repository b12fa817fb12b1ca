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

// Borrows plan, ranks and state. Not thread-safe. A pending save has a thread of its own; the destructor waits for it.
class Checkpointer {
 public:
  // Opens `folder` for checkpoints of `state`. FailedPrecondition if another writer has it open.
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(const JobPlan& plan, LocalRanks& ranks,
                                                              const LocalState& state, const std::string& folder,
                                                              const CheckpointStore::Options& options);
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;

  const std::string& folder() const { return store_->folder(); }

  // See CheckpointStore.
  void DisregardAfter(int64_t step) { store_->DisregardAfter(step); }

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
  Checkpointer(const JobPlan& plan, const LocalState& state) : plan_(plan), state_(state) {}
  absl::Status Complete(Manifest& manifest) const;
  CheckpointReport Write(const Manifest& manifest, RankState::Source source, double started);

  const JobPlan& plan_;
  const LocalState& state_;
  std::unique_ptr<LocalProgram> snapshot_;  // Null if the plan has no snapshot.
  std::unique_ptr<CheckpointStore> store_;
  absl::Span<char> staging_;                      // Staging of rank 0; all ranks are saved through it.
  std::vector<std::unique_ptr<Stream>> streams_;  // By rank: saved bytes are copied to the host on them.
  std::future<CheckpointReport> pending_;
};

}  // namespace shale
