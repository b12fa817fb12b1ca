#include "engine/runtime/host_items.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
HostItems::HostItems(const HostItemLayout& layout, absl::Span<std::byte> memory) : layout_(layout), memory_(memory) {
  SHALE_CHECK(std::ssize(memory) >= layout.size_bytes());
}

std::byte* HostItems::At(HostItem item, int64_t iteration) const {
  const HostItemLayout::Range& r = layout_.range(item);
  SHALE_CHECK(iteration < r.iterations) << ToString(item) << " of iteration " << iteration;
  return memory_.data() + r.offset_bytes + iteration * r.iteration_bytes;
}

HostItems::Ends HostItems::EndsOf(const HostCopy& copy, int64_t iteration) const {
  std::byte* host = At(copy.item, iteration);
  if (ToHost(copy.item)) return {.to = host, .from = copy.device.data};
  return {.to = copy.device.data, .from = host};
}

absl::Status HostItems::Put(HostItem item, const void* from, int64_t size_bytes) {
  const HostItemLayout::Range& r = layout_.range(item);
  if (size_bytes < r.size_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step input ", ToString(item), " has ", size_bytes, " bytes, the program reads ", r.size_bytes()));
  }
  if (r.size_bytes() > 0) std::memcpy(memory_.data() + r.offset_bytes, from, r.size_bytes());
  return absl::OkStatus();
}

absl::Status HostItems::Take(const StepInputs& inputs) {
  const auto put = [&](HostItem item, auto all) {
    return Put(item, all.data(), std::ssize(all) * static_cast<int64_t>(sizeof(all[0])));
  };
  SHALE_RETURN_IF_ERROR(put(HostItem::kInputs, inputs.inputs));
  SHALE_RETURN_IF_ERROR(put(HostItem::kFeatures, inputs.features));
  SHALE_RETURN_IF_ERROR(put(HostItem::kTargets, inputs.targets));
  SHALE_RETURN_IF_ERROR(put(HostItem::kTargetValues, inputs.target_values));
  SHALE_RETURN_IF_ERROR(put(HostItem::kTargetWeights, inputs.target_weights));
  SHALE_RETURN_IF_ERROR(put(HostItem::kPositionIds, inputs.position_ids));
  SHALE_RETURN_IF_ERROR(put(HostItem::kBegins, inputs.begins));
  SHALE_RETURN_IF_ERROR(put(HostItem::kRows, inputs.rows));
  SHALE_RETURN_IF_ERROR(Put(HostItem::kHyper, inputs.hyper.data(), sizeof(inputs.hyper)));
  for (int64_t k = 0; k < layout_.range(HostItem::kMicroBatch).iterations; ++k) {
    std::memcpy(At(HostItem::kMicroBatch, k), &k, sizeof(k));
  }
  SHALE_RETURN_IF_ERROR(Put(HostItem::kWeightTotal, &inputs.weight_total, sizeof(inputs.weight_total)));
  return Put(HostItem::kValidTokens, &inputs.valid_tokens, sizeof(inputs.valid_tokens));
}

void HostItems::Get(HostItem item, void* to) const {
  const HostItemLayout::Range& r = layout_.range(item);
  if (r.size_bytes() > 0) std::memcpy(to, memory_.data() + r.offset_bytes, r.size_bytes());
}

void HostItems::Give(StepOutputs& outputs) const {
  const auto get = [&](HostItem item, auto& to) {
    SHALE_CHECK(layout_.range(item).size_bytes() <= static_cast<int64_t>(sizeof(to)));
    Get(item, &to);
  };
  get(HostItem::kTotals, outputs.totals);
  get(HostItem::kGlobalTokens, outputs.global_tokens);
  get(HostItem::kGlobalWeight, outputs.global_weight);
  outputs.logits.resize(layout_.range(HostItem::kLogits).size_bytes());
  Get(HostItem::kLogits, outputs.logits.data());
}

}  // namespace shale
