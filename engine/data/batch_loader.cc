#include "engine/data/batch_loader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<BatchLoader> BatchLoader::Create(TokenSource source, SampleOrder order, const BatchShape& shape) {
  for (const auto& [size, name] : {std::pair(shape.micro_batch, "micro batch"),
                                   {shape.ranks, "number of ranks"},
                                   {shape.sequence_length, "sequence length"},
                                   {shape.global_batch, "global batch"}}) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    if (size < 1 || size > kMax) {
      return absl::InvalidArgumentError(absl::StrCat("the ", name, " must lie in 1 to ", kMax, "; found ", size));
    }
  }
  SHALE_RETURN_IF_ERROR(source.CheckLength(shape.sequence_length));
  const int64_t samples = SampleCount(source.size(), shape.sequence_length);
  if (order.sample_count() != samples) {
    return absl::InvalidArgumentError(absl::StrCat("the order is one of ", order.sample_count(), " samples, but ",
                                                   source.size(), " tokens hold ", samples, " of ",
                                                   shape.sequence_length));
  }
  return BatchLoader(std::move(source), order, shape);
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

int64_t BatchLoader::ValidTokens(const StepSamples& step, int64_t rank, int64_t micro_batch) const {
  const int64_t per_sample = shape_.targets == TargetPositions::kEvery ? shape_.sequence_length : 1;
  return FilledSlots(step, rank, micro_batch) * per_sample;
}

absl::Status BatchLoader::Fill(const StepSamples& step, int64_t rank, int64_t micro_batch,
                               absl::Span<int32_t> inputs_BS, absl::Span<int32_t> targets_BS) const {
  const int64_t length = shape_.sequence_length;
  const size_t size = static_cast<size_t>(shape_.micro_batch * length);
  SHALE_CHECK(inputs_BS.size() == size && targets_BS.size() == size)
      << inputs_BS.size() << " inputs and " << targets_BS.size() << " targets for a micro-batch of " << size;
  const int64_t filled = FilledSlots(step, rank, micro_batch);
  const int64_t first_slot = (micro_batch * shape_.ranks + rank) * shape_.micro_batch;
  for (int64_t slot = 0; slot < filled; ++slot) {
    const int64_t begin = order_.At(step.begin + first_slot + slot) * length;
    int32_t* inputs = inputs_BS.data() + slot * length;
    int32_t* targets = targets_BS.data() + slot * length;
    SHALE_RETURN_IF_ERROR(source_.Read(begin, length, inputs));
    SHALE_RETURN_IF_ERROR(source_.Read(begin + length, 1, targets + length - 1));
    if (shape_.targets == TargetPositions::kEvery) {
      std::copy(inputs + 1, inputs + length, targets);
    } else {
      std::fill(targets, targets + length - 1, kMaskedTarget);
    }
  }
  std::fill(inputs_BS.begin() + filled * length, inputs_BS.end(), 0);
  std::fill(targets_BS.begin() + filled * length, targets_BS.end(), kMaskedTarget);
  return absl::OkStatus();
}

}  // namespace shale
