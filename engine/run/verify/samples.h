// The samples of a job's first positions, read once and kept, so that all runs of a verification see the same data,
// whatever the job's own source does.
//
// S positions in a sample.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/data_source.h"
#include "engine/files/data/batch_loader.h"

namespace shale {

// A target that the model does not read is masked.
using RecordedSample = PulledSample;

// Any thread may read it.
struct RecordedSamples {
  DataDescription description;  // That of the source, but for its name and the number of its samples.
  std::vector<RecordedSample> samples;
  bool last_target_only = false;

  int64_t size() const { return std::ssize(samples); }
};

// Reads the samples at positions [0, count) of a loader with one rank, micro-batches of one sample, and a global batch
// of `count`: in order, or from the last to the first. Returns the errors of BatchLoader::Fill.
enum class ReadOrder { kForward, kBackward };
absl::StatusOr<std::vector<RecordedSample>> ReadSamples(const BatchLoader& loader, ReadOrder order);

// Returns a line that says where two readings of the same positions differ first: position, part, and values. Empty if
// they do not.
std::string FirstDifference(const std::vector<RecordedSample>& once, const std::vector<RecordedSample>& again);

// Gives recorded samples to a run: sample i is the sample of position i. Borrows them.
class RecordedSource : public DataSource {
 public:
  // Changes a sample before a run reads it.
  using Edit = std::function<void(int64_t sample, const SampleParts& parts)>;
  explicit RecordedSource(const RecordedSamples& recorded) : DataSource(recorded.description), recorded_(recorded) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override;
  // REQUIRES: nobody reads meanwhile.
  void SetEdit(Edit edit) { edit_ = std::move(edit); }

 private:
  const RecordedSamples& recorded_;
  Edit edit_;
};

}  // namespace shale
