#include "engine/train/host_batch.h"

#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "kernels/check.h"

namespace shale {

HostBatch::HostBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks)
    : loader_(loader), micro_batches_(micro_batches), ranks_(std::move(ranks)) {
  if (ranks_.empty()) {
    ranks_.resize(loader.shape().ranks);
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  const DataDescription& data = loader.source().description();
  const int64_t positions = micro_batches * loader.shape().micro_batch * loader.shape().sequence_length;
  OfRank one;
  one.inputs.resize(data.features > 0 ? 0 : positions);
  one.features.resize(positions * data.features);
  one.targets.resize(data.target_values > 0 ? 0 : positions);
  one.target_values.resize(positions * data.target_values);
  one.weights.resize(loader.has_weights() ? positions : 0);
  one.position_ids.resize(data.has_position_ids ? positions : 0);
  data_.assign(ranks_.size(), one);
}

SampleParts HostBatch::MicroBatch(OfRank& rank, int64_t micro_batch) const {
  const auto part = [&](auto& all) {
    const int64_t size = std::ssize(all) / micro_batches_;
    return absl::MakeSpan(all).subspan(micro_batch * size, size);
  };
  return {.inputs = part(rank.inputs),
          .features = part(rank.features),
          .targets = part(rank.targets),
          .target_values = part(rank.target_values),
          .weights = part(rank.weights),
          .position_ids = part(rank.position_ids)};
}

absl::StatusOr<std::vector<StepInputs>> HostBatch::Fill(const StepSamples& step) {
  std::vector<StepInputs> all(data_.size());
  for (int64_t k = 0; k < micro_batches_; ++k) {
    for (size_t i = 0; i < all.size(); ++i) {
      SHALE_ASSIGN_OR_RETURN(const BatchCounts counts, loader_.Fill(step, ranks_[i], k, MicroBatch(data_[i], k)));
      all[i].valid_tokens += counts.valid_tokens;
      all[i].weight_total += counts.weight_total;
    }
  }
  SHALE_RETURN_IF_ERROR(loader_.EndStep(step));
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].inputs = data_[i].inputs;
    all[i].features = data_[i].features;
    all[i].targets = data_[i].targets;
    all[i].target_values = data_[i].target_values;
    all[i].target_weights = data_[i].weights;
    all[i].position_ids = data_[i].position_ids;
  }
  return all;
}

}  // namespace shale
