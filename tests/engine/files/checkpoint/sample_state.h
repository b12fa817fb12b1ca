// Writes checkpoints without a trainer. The state is random bits, cut into pieces for any number of ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/files/checkpoint/manifest.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/files/checkpoint/store.h"

namespace shale {

struct SampleForm {
  int64_t ranks = 1;
  SavedValues values = SavedValues::kFloat32;
  int64_t step = 4;
  int frozen = -1;  // The parameter that is frozen; -1: none.
  SavedValues frozen_values = SavedValues::kFloat32;
  std::optional<double> evaluation_loss;  // Of an evaluation after the step.
};

class SampleState {
 public:
  // Fills all parts with random bits, NaN, infinities and denormals among them.
  SampleState(std::vector<SavedParameter> parameters, uint64_t seed);

  const std::vector<SavedParameter>& parameters() const { return parameters_; }
  // Returns the elements of one part of a parameter: kValue, StatePart(0) (m) or StatePart(1) (v).
  const std::vector<float>& Elements(SavedPart part, int parameter) const;
  void Set(SavedPart part, int parameter, int64_t element, float value);
  // Returns what a reader must get where `value` was saved in this form. A NaN that was saved as kSplit becomes quiet
  // and loses its low bits.
  static float AsRead(float value, SavedValues values);

  // Returns a manifest without `ranks` and `files`.
  Manifest ManifestOf(const SampleForm& form) const;
  // Writes one shard per rank. Parameters straddle ranks and have several pieces on each. The middle one of three ranks
  // owns nothing of the last parameter.
  std::vector<SavedFile> WriteShards(const std::string& folder, const SampleForm& form) const;
  // Creates `folder`, writes a checkpoint into it as a store would, and returns the manifest.
  Manifest WriteCheckpoint(const std::string& folder, const SampleForm& form) const;
  // Saves a checkpoint in `store` and returns its path.
  std::string Save(CheckpointStore& store, const SampleForm& form) const;

 private:
  struct Parts {
    std::vector<float> value, m, v;
    std::vector<uint16_t> high, low;
  };
  const std::byte* Data(SavedPart part, int parameter, int64_t element) const;

  std::vector<SavedParameter> parameters_;
  std::vector<Parts> parts_;  // Indexed by parameter.
};

// Returns five parameters with a few thousand elements in all, each with an odd number of elements.
SampleState SmallSample(uint64_t seed = 1);
// Returns a state with more than two chunks per rank.
SampleState LargeSample(uint64_t seed = 1);

// Flips a bit of a file. A second call restores the file.
void FlipBit(const std::string& path, int64_t bit);
// Returns a path such as "/path/rank-00001-of-00003.shard".
std::string ShardPath(const std::string& folder, int64_t rank, int64_t ranks);

}  // namespace shale
