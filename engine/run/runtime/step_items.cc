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

absl::Span<const std::byte> StepInputs::Bytes(StepItem item) const {
  switch (item) {
    case StepItem::kHyper: return {reinterpret_cast<const std::byte*>(hyper.data()), sizeof(hyper)};
    case StepItem::kValidTokens: return {reinterpret_cast<const std::byte*>(&valid_tokens), sizeof(valid_tokens)};
    case StepItem::kWeightTotal: return {reinterpret_cast<const std::byte*>(&weight_total), sizeof(weight_total)};
    default: return items_[static_cast<int>(item)];
  }
}

absl::Status StepItems::Put(StepItem item, absl::Span<const std::byte> from) {
  const StepItemLayout::Range& r = layout_.range(item);
  if (std::ssize(from) < r.size_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("step input ", ToString(item), " has ", from.size(),
                                                   " bytes, the program reads ", r.size_bytes()));
  }
  if (r.size_bytes() > 0) std::memcpy(memory_.data() + r.offset_bytes, from.data(), r.size_bytes());
  return absl::OkStatus();
}

absl::Status StepItems::Take(const StepInputs& inputs) {
  for (int i = 0; i < kStepItems; ++i) {
    const auto item = static_cast<StepItem>(i);
    if (ToHost(item) || item == StepItem::kMicroBatch) continue;
    SHALE_RETURN_IF_ERROR(Put(item, inputs.Bytes(item)));
  }
  for (int64_t k = 0; k < layout_.range(StepItem::kMicroBatch).iterations; ++k) {
    std::memcpy(At(StepItem::kMicroBatch, k), &k, sizeof(k));
  }
  return absl::OkStatus();
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
