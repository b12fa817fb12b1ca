// PullSource: a DataSource that reads from an iterator, which returns one sample after another.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/data_source.h"

namespace shale {

// One sample. Its parts have the sizes that SampleParts gives. A part that samples do not have stays empty.
struct PulledSample {
  std::vector<int32_t> inputs;
  std::vector<float> features;
  std::vector<int32_t> targets;
  std::vector<float> target_values;
  std::vector<float> weights;
  std::vector<int32_t> position_ids;
};

// The iterator. One thread at a time calls these functions, not always the same one. They may throw.
struct PullCallbacks {
  // Fills the sample, whose parts are empty, and returns true. Returns false if there are no more samples. May wait as
  // long as it takes. Required.
  std::function<absl::StatusOr<bool>(PulledSample&)> next;
  // Returns the state after the last sample that `next` returned, up to 1 MiB; `restore` continues from such a state.
  // Called at the start of a run and after the samples of every step. Runs that save or resume need both functions.
  std::function<absl::StatusOr<std::string>()> save;
  std::function<absl::Status(const std::string&)> restore;
};

// The trainer reads a step ahead, so the iterator is ahead of the training. A checkpoint records the state after the
// samples of its last step. After an error, every later read returns that error.
//
// A run with this data reads its samples in order (data.order SEQUENTIAL), in one process. If a run changes to other
// data and back, the iterator continues after the samples that were read ahead before the change.
class PullSource : public DataSource {
 public:
  PullSource(DataDescription description, PullCallbacks callbacks)
      : DataSource(std::move(description)), callbacks_(std::move(callbacks)) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override;
  bool sequential() const override { return true; }
  bool has_state() const override { return callbacks_.save && callbacks_.restore; }
  absl::Status Start(int64_t position, const std::string* state) override;
  absl::Status EndStep(int64_t position) override;
  std::string StateAt(int64_t position) const override;

 private:
  absl::Status Pull(const SampleParts& out);
  // Keeps the state of the iterator as that of `position`.
  absl::Status Keep(int64_t position);

  struct State {
    int64_t position;
    std::string bytes;
  };

  const PullCallbacks callbacks_;
  PulledSample sample_;
  absl::Status status_;  // The error of the first read that failed.
  mutable std::mutex mutex_;
  std::deque<State> states_;  // The states of the last positions, ascending. Guarded by mutex_.
};

}  // namespace shale
