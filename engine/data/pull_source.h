// PullSource: a DataSource over an iterator that can only be asked for the next sample.
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

// One sample, with the parts and the sizes that SampleParts says. A part that samples do not have stays empty.
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
  // Sets the sample, whose parts are empty before, and returns true; returns false if there is no further sample. May
  // wait for the sample as long as it takes. Required.
  std::function<absl::StatusOr<bool>(PulledSample&)> next;
  // Returns the state from which `restore` goes on behind the last sample that `next` gave: up to 1 MiB of bytes. Is
  // called at the start of a run and after the samples of every step. Both are required of a run that saves or resumes.
  std::function<absl::StatusOr<std::string>()> save;
  std::function<absl::Status(const std::string&)> restore;
};

// Since the trainer reads a step ahead, the iterator is ahead of what has been trained. A checkpoint records the state
// after the samples of its last step. After an error, every further read returns that error.
//
// A run with this data reads its samples in order (data.order SEQUENTIAL), in one process. If a run changes to other
// data and back, the iterator goes on behind what was read ahead of the change.
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
  absl::Status status_;  // Of the first read that failed.
  mutable std::mutex mutex_;
  std::deque<State> states_;  // Of the last positions, ascending. mutex_ guards it.
};

}  // namespace shale
