// Data of a program: samples by number, or one after another.
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
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shale {

// DataSource: the interface through which a program gives a run its own data (TrainerOptions::data). The files of
// data.path are one implementation (engine/files/data/sample_sources.h).
//
// S positions in a sample, F features of a position, D target values of a position.
//
// A source is a function from the number of a sample to the sample. A run takes positions p = 0, 1, 2, ... of the order
// of its data (engine/files/data/sample_order.h): with N samples, position p is a sample of epoch p / N. Position 0 is
// the first sample that the run took from this source. A sample does not depend on the rank and the micro-batch that
// read it. Therefore a run that resumes, or that has another number of ranks or micro-batches, reads the same samples.
// Use PullSource for data that can only be read in order.

// DataDescription::samples of a source that never ends.
inline constexpr int64_t kEndlessSamples = int64_t{1} << 60;

// The target of a position that does not count in the loss.
inline constexpr int32_t kMaskedTarget = -1;

// Describes the samples of a source.
struct DataDescription {
  // Names the data in messages and in checkpoints. A run resumes only with data of the same name. One line, 1 to 200
  // bytes.
  std::string name;
  int64_t samples = kEndlessSamples;  // N, the samples of an epoch.
  int64_t sequence_length = 1;        // S. Must be batch.sequence_length of the job.
  // All tokens and classes are below this number, which sets the vocabulary of a job that leaves it out. 0: not known.
  int64_t vocabulary = 0;
  int64_t features = 0;       // F. 0: the inputs are tokens.
  int64_t target_values = 0;  // D. 0: the targets are tokens or classes.
  bool has_weights = false;   // Whether every target has a weight (data.target_weights).
  // Whether a sample may hold several documents, and has the position of each token in its document (data.packing
  // PACK).
  bool has_position_ids = false;
};

// Where a source writes one sample. The memory is the engine's. A part that samples do not have is empty.
struct SampleParts {
  absl::Span<int32_t> inputs;       // [S] tokens.
  absl::Span<float> features;       // [S, F]
  absl::Span<int32_t> targets;      // [S] tokens or classes; kMaskedTarget where there is none.
  absl::Span<float> target_values;  // [S, D]
  absl::Span<float> weights;        // [S], of any sign, finite.
  // [S] The position of each token in its document: 0 where one begins, and otherwise one more than before. No token
  // sees those of another document. Write padding as documents of one token each, which costs least.
  absl::Span<int32_t> position_ids;
};

// A run reads from one thread at a time, not always the same one: while a step runs, a thread reads the samples of the
// next step. A source that several runs share, or that is both TrainerOptions::data and evaluation_data, must allow
// concurrent reads.
class DataSource {
 public:
  explicit DataSource(DataDescription description) : description_(std::move(description)) {}
  virtual ~DataSource() = default;
  DataSource(const DataSource&) = delete;

  // Does not change over the life of the source.
  const DataDescription& description() const { return description_; }

  // Writes all of sample `sample`, which must depend on nothing but its number. An error, or an exception, ends the
  // step that asked for the sample, before the step has changed anything, so the run can still be saved. The engine
  // adds the position to the message. REQUIRES: 0 <= sample < description().samples.
  virtual absl::Status Read(int64_t sample, const SampleParts& out) = 0;

  // The functions below are for sources that have a state. Others keep these defaults.

  // Returns whether samples can only be read in order: each once, from the position of Start on.
  virtual bool sequential() const { return false; }
  // Returns whether StateAt works, so that runs can be saved.
  virtual bool has_state() const { return true; }
  // Is called before the first Read, and again if the source becomes the data of a run again (Trainer::SetData).
  // `position` is 0 and `state` null, unless the run resumes: then they are its position, and what StateAt returned for
  // it.
  virtual absl::Status Start(int64_t position, const std::string* state) { return absl::OkStatus(); }
  // Is called after the samples of a step, with the position after them.
  virtual absl::Status EndStep(int64_t position) { return absl::OkStatus(); }
  // Returns the state that a checkpoint at `position` records. `position` is that of Start, or one that EndStep was
  // given. It is not always the last one, because samples of later steps may have been read already. Must not fail, so
  // get the state in EndStep and keep it. Any thread may call it.
  virtual std::string StateAt(int64_t position) const { return ""; }

 private:
  const DataDescription description_;
};

// PullSource: a DataSource that reads from an iterator, which returns one sample after another.

// One sample. Its parts have the sizes that SampleParts gives. A part that samples do not have stays empty.
struct PulledSample {
  std::vector<int32_t> inputs;
  std::vector<float> features;
  std::vector<int32_t> targets;
  std::vector<float> target_values;
  std::vector<float> weights;
  std::vector<int32_t> position_ids;

  bool operator==(const PulledSample&) const = default;
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
