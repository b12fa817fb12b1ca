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
  const auto tokens = [&](HostItem item, absl::Span<const int32_t> all) {
    return Put(item, all.data(), std::ssize(all) * sizeof(int32_t));
  };
  SHALE_RETURN_IF_ERROR(tokens(HostItem::kInputs, inputs.inputs));
  SHALE_RETURN_IF_ERROR(tokens(HostItem::kTargets, inputs.targets));
  SHALE_RETURN_IF_ERROR(tokens(HostItem::kRows, inputs.rows));
  SHALE_RETURN_IF_ERROR(Put(HostItem::kHyper, inputs.hyper.data(), sizeof(inputs.hyper)));
  for (int64_t k = 0; k < layout_.range(HostItem::kMicroBatch).iterations; ++k) {
    std::memcpy(At(HostItem::kMicroBatch, k), &k, sizeof(k));
  }
  return Put(HostItem::kValidTokens, &inputs.valid_tokens, sizeof(inputs.valid_tokens));
}

void HostItems::Get(HostItem item, void* to) const {
  const HostItemLayout::Range& r = layout_.range(item);
  if (r.size_bytes() > 0) std::memcpy(to, memory_.data() + r.offset_bytes, r.size_bytes());
}

void HostItems::Give(StepOutputs& outputs) const {
  SHALE_CHECK(layout_.range(HostItem::kTotals).size_bytes() <= static_cast<int64_t>(sizeof(outputs.totals)));
  SHALE_CHECK(layout_.range(HostItem::kGlobalTokens).size_bytes() <=
              static_cast<int64_t>(sizeof(outputs.global_tokens)));
  Get(HostItem::kTotals, outputs.totals.data());
  Get(HostItem::kGlobalTokens, &outputs.global_tokens);
  outputs.logits.resize(layout_.range(HostItem::kLogits).size_bytes());
  Get(HostItem::kLogits, outputs.logits.data());
}

}  // namespace shale
