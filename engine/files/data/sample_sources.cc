#include "engine/files/data/sample_sources.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/files/data/documents.h"
#include "engine/files/data/sample_order.h"
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

TokenSamples::TokenSamples(TokenSource source, int64_t sequence_length)
    : DataSource({.name = source.tokenizer(),
                  .samples = SampleCount(source.size(), sequence_length),
                  .sequence_length = sequence_length}),
      source_(std::move(source)) {}

absl::Status TokenSamples::Read(int64_t sample, const SampleParts& out) {
  const int64_t length = description().sequence_length, begin = sample * length;
  SHALE_RETURN_IF_ERROR(source_.Read(begin, length, out.inputs.data()));
  SHALE_RETURN_IF_ERROR(source_.Read(begin + length, 1, out.targets.data() + length - 1));
  std::copy(out.inputs.begin() + 1, out.inputs.end(), out.targets.begin());
  return source_.MaskTargets(begin + 1, length, out.targets.data());
}

DocumentSamples::DocumentSamples(TokenSource source, Packing packing, const FoundDocuments& found,
                                 int64_t sequence_length, Table table)
    : DataSource({.name = source.tokenizer(),
                  .samples = std::ssize(table.first) - 1,
                  .sequence_length = sequence_length,
                  .has_position_ids = packing == Packing::kPack}),
      source_(std::move(source)),
      table_(std::move(table)),
      targets_(std::accumulate(table_.targets.begin(), table_.targets.end(), int64_t{0})),
      report_(found.report) {
  report_.samples = description().samples;
  const auto positions = static_cast<double>(report_.samples * sequence_length);
  report_.padding = 1 - static_cast<double>(targets_) / positions;
}

absl::StatusOr<std::shared_ptr<DocumentSamples>> DocumentSamples::Create(TokenSource source, Packing packing,
                                                                         const DocumentMark& mark,
                                                                         int64_t sequence_length,
                                                                         LongDocuments longer) {
  SHALE_CHECK(packing != Packing::kCut) << "samples that are cut are TokenSamples";
  SHALE_ASSIGN_OR_RETURN(const FoundDocuments found, FindDocuments(source, mark, sequence_length, longer));
  return absl::WrapUnique(new DocumentSamples(std::move(source), packing, found, sequence_length,
                                              MakeTable(found.parts, packing, sequence_length)));
}

DocumentSamples::Table DocumentSamples::MakeTable(const std::vector<DocumentPart>& parts, Packing packing,
                                                  int64_t sequence_length) {
  std::vector<int64_t> samples(parts.size());  // The sample of each part.
  std::iota(samples.begin(), samples.end(), 0);
  if (packing == Packing::kPack) {
    std::vector<int32_t> sizes;
    sizes.reserve(parts.size());
    for (const DocumentPart& part : parts) sizes.push_back(part.targets);
    samples = BestFit(sizes, static_cast<int32_t>(sequence_length));
  }
  // A counting sort of the parts by sample, which keeps their order within a sample.
  Table table;
  table.first.resize(*std::max_element(samples.begin(), samples.end()) + 2);
  for (const int64_t sample : samples) ++table.first[sample + 1];
  std::partial_sum(table.first.begin(), table.first.end(), table.first.begin());
  std::vector<int64_t> next(table.first.begin(), table.first.end() - 1);
  table.begins.resize(parts.size());
  table.targets.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t to = next[samples[i]]++;
    table.begins[to] = parts[i].begin;
    table.targets[to] = parts[i].targets;
  }
  return table;
}

absl::Status DocumentSamples::Read(int64_t sample, const SampleParts& out) {
  int64_t at = 0;
  for (int64_t part = table_.first[sample]; part < table_.first[sample + 1]; ++part) {
    const int64_t begin = table_.begins[part], count = table_.targets[part];
    SHALE_RETURN_IF_ERROR(source_.Read(begin, count, &out.inputs[at]));
    std::copy_n(out.inputs.begin() + at + 1, count - 1, out.targets.begin() + at);
    SHALE_RETURN_IF_ERROR(source_.Read(begin + count, 1, &out.targets[at + count - 1]));
    SHALE_RETURN_IF_ERROR(source_.MaskTargets(begin + 1, count, &out.targets[at]));
    if (!out.position_ids.empty()) {
      std::iota(out.position_ids.begin() + at, out.position_ids.begin() + at + count, 0);
    }
    at += count;
  }
  std::fill(out.inputs.begin() + at, out.inputs.end(), 0);
  std::fill(out.targets.begin() + at, out.targets.end(), kMaskedTarget);
  if (!out.position_ids.empty()) std::fill(out.position_ids.begin() + at, out.position_ids.end(), 0);
  return absl::OkStatus();
}

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

MixedSamples::SampleOfPart MixedSamples::At(int64_t position) const {
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
  const SampleOfPart place = At(position);
  return parts_[place.part].source->Read(place.sample, out);
}

}  // namespace shale
