#include "engine/runtime/host_items.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

absl::StatusOr<HostItems> HostItems::Create(const StepProgram& program, Device& device) {
  HostItems items;
  for (const Section& section : program.sections) {
    for (InstructionId id = section.begin; id < section.end; ++id) {
      const auto* copy = std::get_if<HostCopy>(&program.instructions[id].action);
      if (copy == nullptr) continue;
      Range& range = items.ranges_[static_cast<int>(copy->item)];
      range.pass_bytes = std::max(range.pass_bytes, copy->device.extent_bytes());
      range.passes = std::max(range.passes, section.repeat);
    }
  }
  int64_t bytes = 0;
  for (Range& range : items.ranges_) {
    range.offset_bytes = bytes;
    bytes += (range.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  SHALE_ASSIGN_OR_RETURN(items.memory_, device.AllocatePinned(bytes));
  return items;
}

std::byte* HostItems::At(HostItem item, int64_t pass) const {
  const Range& r = range(item);
  SHALE_CHECK(pass < r.passes) << ToString(item) << " of pass " << pass;
  return memory_->base() + r.offset_bytes + pass * r.pass_bytes;
}

HostItems::Ends HostItems::EndsOf(const HostCopy& copy, int64_t pass) const {
  std::byte* host = At(copy.item, pass);
  if (ToHost(copy.item)) return {.to = host, .from = copy.device.data};
  return {.to = copy.device.data, .from = host};
}

absl::Status HostItems::Put(HostItem item, const void* from, int64_t size_bytes) {
  const Range& r = range(item);
  if (size_bytes < r.size_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step input ", ToString(item), " has ", size_bytes, " bytes, the program reads ", r.size_bytes()));
  }
  if (r.size_bytes() > 0) std::memcpy(memory_->base() + r.offset_bytes, from, r.size_bytes());
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
  return Put(HostItem::kValidTokens, &inputs.valid_tokens, sizeof(inputs.valid_tokens));
}

void HostItems::Get(HostItem item, void* to) const {
  const Range& r = range(item);
  if (r.size_bytes() > 0) std::memcpy(to, memory_->base() + r.offset_bytes, r.size_bytes());
}

void HostItems::Give(StepOutputs& outputs) const {
  SHALE_CHECK(range(HostItem::kTotals).size_bytes() <= static_cast<int64_t>(sizeof(outputs.totals)));
  SHALE_CHECK(range(HostItem::kGlobalTokens).size_bytes() <= static_cast<int64_t>(sizeof(outputs.global_tokens)));
  Get(HostItem::kTotals, outputs.totals.data());
  Get(HostItem::kGlobalTokens, &outputs.global_tokens);
  outputs.logits.resize(range(HostItem::kLogits).size_bytes());
  Get(HostItem::kLogits, outputs.logits.data());
}

}  // namespace shale
