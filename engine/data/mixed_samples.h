// MixedSamples: the samples of several sources, mixed in fixed proportions (data.mix).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/data_source.h"
#include "engine/data/data_enums.h"
#include "engine/data/sample_order.h"

namespace shale {

// One of the sources of a mixture.
struct MixedPart {
  std::shared_ptr<DataSource> source;
  int64_t share = 0;  // How many of 1,000 samples come from it.
};

// A source that never ends. Any 1,000 consecutive samples have exactly `share` samples of each part, spread evenly.
// Reads each part in an order of its own, epoch after epoch, so a small part begins again while a large one lasts. The
// sample at a position depends on the shares, the sizes of the parts, the order and the seed alone. Takes a few KB of
// memory. Safe for concurrent reads if the parts are.
class MixedSamples : public DataSource {
 public:
  // REQUIRES: the shares are at least 1 and sum to kMixWindow, and the parts have the same fields in their samples, and
  // no state.
  MixedSamples(std::string name, std::vector<MixedPart> parts, DataOrder order, uint64_t seed);

  // A sample of a part.
  struct Place {
    int64_t part = 0;
    int64_t sample = 0;  // The number of the sample in that part.
  };
  // Returns the sample at a position. REQUIRES: position >= 0.
  Place At(int64_t position) const;

  // Returns the parts as checkpoints record them: "750 from 5120, 250 from 96", the share and the size of each.
  std::string Describe() const;

  // Returns what the Read of the part returns.
  absl::Status Read(int64_t position, const SampleParts& out) override;

 private:
  struct Slot {
    int16_t part = 0;
    int16_t rank = 0;  // How many slots before this one belong to the same part.
  };

  const std::vector<MixedPart> parts_;
  std::vector<SampleOrder> orders_;  // Of each part.
  std::array<Slot, kMixWindow> slots_;
};

}  // namespace shale
