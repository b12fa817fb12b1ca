#include "engine/data/mixed_samples.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

DataDescription DescriptionOf(std::string name, const std::vector<MixedPart>& parts) {
  SHALE_CHECK(!parts.empty()) << "a mixture of nothing";
  DataDescription description = parts[0].source->description();
  description.name = std::move(name);
  description.samples = kEndlessSamples;
  return description;
}

}  // namespace

MixedSamples::MixedSamples(std::string name, std::vector<MixedPart> parts, DataOrder order, uint64_t seed)
    : DataSource(DescriptionOf(std::move(name), parts)), parts_(std::move(parts)) {
  int64_t slots = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int64_t share = parts_[i].share;
    SHALE_CHECK(share >= 1 && share <= kMixWindow - slots) << "share " << share << " of part " << i;
    for (int64_t rank = 0; rank < share; ++rank) {
      slots_[slots++] = {.part = static_cast<int16_t>(i), .rank = static_cast<int16_t>(rank)};
    }
    // With a seed for each part, parts of the same size have different orders.
    orders_.emplace_back(order, seed + i, parts_[i].source->description().samples);
  }
  SHALE_CHECK(slots == kMixWindow) << "the shares sum to " << slots;
  // Spreads the samples of each part evenly over the window: sample r of s belongs at (2 r + 1) / (2 s) of it.
  std::stable_sort(slots_.begin(), slots_.end(), [&](const Slot& a, const Slot& b) {
    return (2 * a.rank + 1) * parts_[b.part].share < (2 * b.rank + 1) * parts_[a.part].share;
  });
}

MixedSamples::Place MixedSamples::At(int64_t position) const {
  const Slot slot = slots_[position % kMixWindow];
  return {.part = slot.part,
          .sample = orders_[slot.part].At(position / kMixWindow * parts_[slot.part].share + slot.rank)};
}

std::string MixedSamples::Describe() const {
  std::string text;
  for (const MixedPart& part : parts_) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", part.share, " from ", part.source->description().samples);
  }
  return text;
}

absl::Status MixedSamples::Read(int64_t position, const SampleParts& out) {
  const Place place = At(position);
  return parts_[place.part].source->Read(place.sample, out);
}

}  // namespace shale
