// Checkpoints without a trainer: state of random bits, cut into pieces for any number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/shard_writer.h"
#include "engine/checkpoint/store.h"

namespace shale {

struct SampleForm {
  int64_t ranks = 1;
  SavedValues values = SavedValues::kFloat32;
  int64_t step = 4;
};

class SampleState {
 public:
  // Bits of all kinds: NaN, infinities and denormals too.
  SampleState(std::vector<SavedParameter> parameters, uint64_t seed);

  const std::vector<SavedParameter>& parameters() const { return parameters_; }
  // kValue, kFirstMoment or kSecondMoment of a parameter.
  const std::vector<float>& Elements(SavedPart part, int parameter) const;
  void Set(SavedPart part, int parameter, int64_t element, float value);
  // What a reader should get for kValue: a NaN whose halves were saved is quiet and has lost its low bits.
  static float AsRead(float value, SavedValues values);

  // All but ranks and files.
  Manifest ManifestOf(const SampleForm& form) const;
  // Parameters straddle ranks, and come in several pieces on each. The rank in the middle of three owns nothing of the
  // last parameter.
  std::vector<SavedFile> WriteShards(const std::string& folder, const SampleForm& form) const;
  // A folder that is made here, as a store would write it.
  Manifest WriteCheckpoint(const std::string& folder, const SampleForm& form) const;
  // Its path.
  std::string Save(CheckpointStore& store, const SampleForm& form) const;

 private:
  struct Parts {
    std::vector<float> value, m, v;
    std::vector<uint16_t> high, low;
  };
  const std::byte* Data(SavedPart part, int parameter, int64_t element) const;

  std::vector<SavedParameter> parameters_;
  std::vector<Parts> parts_;  // Of each parameter.
};

// Five parameters of a few thousand elements, odd in number.
SampleState SmallSample(uint64_t seed = 1);
// More than two chunks for a rank.
SampleState LargeSample(uint64_t seed = 1);

// Flips a bit of a file; again, and it is as before.
void FlipBit(const std::string& path, int64_t bit);
// "/path/rank-00001-of-00003.shard".
std::string ShardPath(const std::string& folder, int64_t rank, int64_t ranks);

}  // namespace shale
