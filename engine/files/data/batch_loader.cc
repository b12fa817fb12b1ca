#include "engine/files/data/batch_loader.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/files/data/sample_parts.h"
#include "engine/files/data/sample_sources.h"
#include "kernels/check.h"

namespace shale {
namespace {

void MakeMissing(const SampleParts& sample) {
  ForEachPart([&](const auto& part) {
    const auto& elements = sample.*part.span;
    std::fill(elements.begin(), elements.end(), part.missing);
  });
}

// Returns what batches have: what the source has, and weights of 1 and 0 beside target values.
DataDescription BatchDescription(DataDescription source) {
  source.has_weights |= source.target_values > 0;
  return source;
}

absl::Status CheckPositionIds(absl::Span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t next = i == 0 ? 0 : ids[i - 1] + 1;
    if (ids[i] == 0 || ids[i] == next) continue;
    return absl::OutOfRangeError(absl::StrCat("position id ", i, " is ", ids[i], "; wanted 0, where a document begins",
                                              next > 0 ? absl::StrCat(", or ", next) : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(absl::string_view what, absl::Span<const int32_t> ids, int64_t limit, bool may_be_masked) {
  const int32_t least = may_be_masked ? kMaskedTarget : 0;
  if (limit == 0) limit = int64_t{1} << 31;  // Not known.
  bool good = true;
  for (const int32_t id : ids) good &= id >= least && id < limit;
  if (good) return absl::OkStatus();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= least && ids[i] < limit) continue;
    return absl::OutOfRangeError(absl::StrCat(what, " ", i, " is ", ids[i], "; the model allows 0 to ", limit - 1,
                                              may_be_masked ? ", and -1 for a position without a target" : "",
                                              may_be_masked && ids[i] < least ? ", and no other number below 0" : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(absl::string_view what, absl::Span<const float> values) {
  bool good = true;
  for (const float value : values) good &= std::isfinite(value);
  if (good) return absl::OkStatus();
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  return absl::OutOfRangeError(absl::StrCat(what, " ", bad - values.begin(), " is ", *bad, "; wanted a finite number"));
}

}  // namespace

absl::StatusOr<BatchLoader> BatchLoader::Create(std::shared_ptr<DataSource> source, SampleOrder order,
                                                const BatchShape& shape) {
  for (const auto& [size, name] : {std::pair(shape.micro_batch, "micro batch"),
                                   {shape.ranks, "number of ranks"},
                                   {shape.sequence_length, "sequence length"},
                                   {shape.global_batch, "global batch"}}) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    if (size < 1 || size > kMax) {
      return absl::InvalidArgumentError(absl::StrCat("the ", name, " must lie in 1 to ", kMax, "; found ", size));
    }
  }
  const DataDescription& description = source->description();
  if (description.sequence_length != shape.sequence_length) {
    return absl::InvalidArgumentError(absl::StrCat("samples have length ", description.sequence_length,
                                                   ", but batch.sequence_length is ", shape.sequence_length));
  }
  if (order.sample_count() != description.samples) {
    return absl::InvalidArgumentError(absl::StrCat("the order is one of ", order.sample_count(),
                                                   " samples, but the data has ", description.samples, " of length ",
                                                   shape.sequence_length));
  }
  return BatchLoader(std::move(source), order, shape);
}

absl::StatusOr<BatchLoader> BatchLoader::Create(TokenSource source, SampleOrder order, const BatchShape& shape) {
  if (shape.sequence_length >= 1) SHALE_RETURN_IF_ERROR(source.CheckLength(shape.sequence_length));
  const int64_t length = std::max<int64_t>(1, shape.sequence_length);
  return Create(std::make_shared<TokenSamples>(std::move(source), length), order, shape);
}

BatchLoader::BatchLoader(std::shared_ptr<DataSource> source, SampleOrder order, const BatchShape& shape)
    : source_(std::move(source)),
      description_(BatchDescription(source_->description())),
      order_(order),
      shape_(shape) {}

void BatchLoader::Expect(TargetPositions targets, int64_t input_ids, int64_t target_ids) {
  shape_.targets = targets;
  shape_.input_ids = input_ids;
  shape_.target_ids = target_ids;
}

void BatchLoader::Divide(int64_t micro_batch, int64_t global_batch) {
  SHALE_CHECK(micro_batch >= 1 && global_batch >= 1) << micro_batch << " of " << global_batch;
  shape_.micro_batch = micro_batch;
  shape_.global_batch = global_batch;
}

int64_t BatchLoader::FilledSlots(const StepSamples& step, int64_t rank, int64_t micro_batch) const {
  SHALE_CHECK(rank >= 0 && rank < shape_.ranks) << "rank " << rank << " of " << shape_.ranks;
  SHALE_CHECK(micro_batch >= 0 && micro_batch < shape_.AccumulationSteps())
      << "micro-batch " << micro_batch << " of " << shape_.AccumulationSteps();
  SHALE_CHECK(step.begin >= 0 && step.count >= 0 && step.count <= shape_.global_batch)
      << "samples [" << step.begin << ", " << step.begin << " + " << step.count << ") in a batch of "
      << shape_.global_batch;
  const int64_t first_slot = (micro_batch * shape_.ranks + rank) * shape_.micro_batch;
  return std::clamp<int64_t>(step.count - first_slot, 0, shape_.micro_batch);
}

absl::Status BatchLoader::Check(const SampleParts& sample) const {
  SHALE_RETURN_IF_ERROR(CheckIds("input", sample.inputs, shape_.input_ids, /*may_be_masked=*/false));
  SHALE_RETURN_IF_ERROR(CheckIds("target", sample.targets, shape_.target_ids, /*may_be_masked=*/true));
  absl::Status status;
  ForEachPart([&](const auto& part) {
    if constexpr (std::is_same_v<typename std::decay_t<decltype(part)>::Element, float>) {
      status.Update(CheckFinite(part.element, sample.*part.span));
    }
  });
  status.Update(CheckPositionIds(sample.position_ids));
  return status;
}

absl::Status BatchLoader::Read(int64_t position, const SampleParts& out) const {
  const int64_t sample = order_.At(position);
  SampleParts parts = out;
  if (!source_->description().has_weights) parts.weights = {};
  absl::Status status = Guarded("its source", [&] { return source_->Read(sample, parts); });
  if (status.ok()) status = Check(parts);
  if (status.ok()) {
    if (parts.weights.empty()) std::fill(out.weights.begin(), out.weights.end(), 1.0f);
    return absl::OkStatus();
  }
  return absl::Status(status.code(), absl::StrCat("position ", position, " of the data (sample ", sample, " of \"",
                                                  source_->description().name, "\"): ", status.message()));
}

absl::StatusOr<BatchCounts> BatchLoader::Fill(const StepSamples& step, int64_t rank, int64_t micro_batch,
                                              const SampleParts& out) const {
  const int64_t length = shape_.sequence_length, slots = shape_.micro_batch;
  const bool values = description_.target_values > 0;
  ForEachPart([&](const auto& part) {
    SHALE_CHECK(std::ssize(out.*part.span) == slots * length * part.elements(description_))
        << "the batch does not have the shape of the loader: " << part.element;
  });
  const int64_t filled = FilledSlots(step, rank, micro_batch);
  const int64_t first_slot = (micro_batch * shape_.ranks + rank) * slots;
  BatchCounts counts;
  for (int64_t slot = 0; slot < slots; ++slot) {
    const SampleParts sample = Piece(out, slot, slots);
    if (slot >= filled) {
      MakeMissing(sample);
      continue;
    }
    SHALE_RETURN_IF_ERROR(Read(step.begin + first_slot + slot, sample));
    const int64_t first = shape_.targets == TargetPositions::kLast ? length - 1 : 0;
    if (!values) std::fill(sample.targets.begin(), sample.targets.begin() + first, kMaskedTarget);
    for (int64_t i = first; i < length; ++i) {
      if (!values && sample.targets[i] < 0) continue;
      ++counts.valid_tokens;
      counts.weight_total += sample.weights.empty() ? 1 : std::abs(sample.weights[i]);
    }
  }
  return counts;
}

absl::Status BatchLoader::Start(int64_t position, const std::string* state) const {
  return AtPosition(position, Guarded("its source", [&] { return source_->Start(position, state); }));
}

absl::Status BatchLoader::AtPosition(int64_t position, const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("position ", position, " of the data \"", source_->description().name,
                                                  "\": ", status.message()));
}

absl::Status BatchLoader::EndStep(const StepSamples& step) const {
  const int64_t position = step.begin + step.count;
  return AtPosition(position, Guarded("its source", [&] { return source_->EndStep(position); }));
}

}  // namespace shale
