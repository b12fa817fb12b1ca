#include "engine/train/host_batch.h"

#include "absl/types/span.h"
#include "kernels/check.h"

namespace shale {

HostBatch::HostBatch(const BatchLoader& loader, int64_t micro_batches)
    : loader_(loader),
      micro_batches_(micro_batches),
      tokens_(loader.shape().micro_batch * loader.shape().sequence_length),
      inputs_(loader.shape().ranks, std::vector<int32_t>(tokens_ * micro_batches)),
      targets_(inputs_) {}

absl::StatusOr<std::vector<StepInputs>> HostBatch::Fill(const StepSamples& step) {
  std::vector<StepInputs> all(inputs_.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    StepInputs& in = all[rank];
    in.inputs = inputs_[rank];
    in.targets = targets_[rank];
    for (int64_t k = 0; k < micro_batches_; ++k) {
      SHALE_RETURN_IF_ERROR(loader_.Fill(step, rank, k, absl::MakeSpan(inputs_[rank]).subspan(k * tokens_, tokens_),
                                         absl::MakeSpan(targets_[rank]).subspan(k * tokens_, tokens_)));
      in.valid_tokens += loader_.ValidTokens(step, rank, k);
    }
  }
  return all;
}

}  // namespace shale
