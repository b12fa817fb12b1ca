#include "engine/run/runtime/step_items.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
StepItems::StepItems(const StepItemLayout& layout, absl::Span<std::byte> memory) : layout_(layout), memory_(memory) {
  SHALE_CHECK(std::ssize(memory) >= layout.size_bytes());
}

std::byte* StepItems::At(StepItem item, int64_t iteration) const {
  const StepItemLayout::Range& r = layout_.range(item);
  SHALE_CHECK(iteration < r.iterations) << ToString(item) << " of iteration " << iteration;
  return memory_.data() + r.offset_bytes + iteration * r.iteration_bytes;
}

StepItems::Ends StepItems::EndsOf(const StepItemCopy& copy, int64_t iteration) const {
  std::byte* host = At(copy.item, iteration);
  if (ToHost(copy.item)) return {.to = host, .from = copy.device.data};
  return {.to = copy.device.data, .from = host};
}

absl::Status StepItems::Put(StepItem item, const void* from, int64_t size_bytes) {
  const StepItemLayout::Range& r = layout_.range(item);
  if (size_bytes < r.size_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step input ", ToString(item), " has ", size_bytes, " bytes, the program reads ", r.size_bytes()));
  }
  if (r.size_bytes() > 0) std::memcpy(memory_.data() + r.offset_bytes, from, r.size_bytes());
  return absl::OkStatus();
}

absl::Status StepItems::Take(const StepInputs& inputs) {
  const auto put = [&](StepItem item, auto all) {
    return Put(item, all.data(), std::ssize(all) * static_cast<int64_t>(sizeof(all[0])));
  };
  SHALE_RETURN_IF_ERROR(put(StepItem::kInputs, inputs.inputs));
  SHALE_RETURN_IF_ERROR(put(StepItem::kFeatures, inputs.features));
  SHALE_RETURN_IF_ERROR(put(StepItem::kTargets, inputs.targets));
  SHALE_RETURN_IF_ERROR(put(StepItem::kTargetValues, inputs.target_values));
  SHALE_RETURN_IF_ERROR(put(StepItem::kTargetWeights, inputs.target_weights));
  SHALE_RETURN_IF_ERROR(put(StepItem::kPositionIds, inputs.position_ids));
  SHALE_RETURN_IF_ERROR(put(StepItem::kBegins, inputs.begins));
  SHALE_RETURN_IF_ERROR(put(StepItem::kRows, inputs.rows));
  SHALE_RETURN_IF_ERROR(Put(StepItem::kHyper, inputs.hyper.data(), sizeof(inputs.hyper)));
  for (int64_t k = 0; k < layout_.range(StepItem::kMicroBatch).iterations; ++k) {
    std::memcpy(At(StepItem::kMicroBatch, k), &k, sizeof(k));
  }
  SHALE_RETURN_IF_ERROR(Put(StepItem::kWeightTotal, &inputs.weight_total, sizeof(inputs.weight_total)));
  return Put(StepItem::kValidTokens, &inputs.valid_tokens, sizeof(inputs.valid_tokens));
}

void StepItems::Get(StepItem item, void* to) const {
  const StepItemLayout::Range& r = layout_.range(item);
  if (r.size_bytes() > 0) std::memcpy(to, memory_.data() + r.offset_bytes, r.size_bytes());
}

void StepItems::Give(StepOutputs& outputs) const {
  const auto get = [&](StepItem item, auto& to) {
    SHALE_CHECK(layout_.range(item).size_bytes() <= static_cast<int64_t>(sizeof(to)));
    Get(item, &to);
  };
  get(StepItem::kTotals, outputs.totals);
  get(StepItem::kGlobalTokens, outputs.global_tokens);
  get(StepItem::kGlobalWeight, outputs.global_weight);
  get(StepItem::kLossScale, outputs.loss_scale);
  outputs.logits.resize(layout_.range(StepItem::kLogits).size_bytes());
  Get(StepItem::kLogits, outputs.logits.data());
}

}  // namespace shale
