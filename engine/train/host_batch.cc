#include "engine/train/host_batch.h"

#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "kernels/check.h"

namespace shale {

HostBatch::HostBatch(const BatchLoader& loader, int64_t micro_batches, std::vector<int> ranks)
    : loader_(loader),
      micro_batches_(micro_batches),
      tokens_(loader.shape().micro_batch * loader.shape().sequence_length),
      ranks_(std::move(ranks)) {
  if (ranks_.empty()) {
    ranks_.resize(loader.shape().ranks);
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  inputs_.assign(ranks_.size(), std::vector<int32_t>(tokens_ * micro_batches));
  targets_ = inputs_;
}

absl::StatusOr<std::vector<StepInputs>> HostBatch::Fill(const StepSamples& step) {
  std::vector<StepInputs> all(inputs_.size());
  for (size_t i = 0; i < all.size(); ++i) {
    StepInputs& in = all[i];
    in.inputs = inputs_[i];
    in.targets = targets_[i];
    for (int64_t k = 0; k < micro_batches_; ++k) {
      SHALE_RETURN_IF_ERROR(loader_.Fill(step, ranks_[i], k, absl::MakeSpan(inputs_[i]).subspan(k * tokens_, tokens_),
                                         absl::MakeSpan(targets_[i]).subspan(k * tokens_, tokens_)));
      in.valid_tokens += loader_.ValidTokens(step, ranks_[i], k);
    }
  }
  return all;
}

}  // namespace shale
