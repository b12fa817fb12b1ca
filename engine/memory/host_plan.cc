#include "engine/memory/host_plan.h"

#include <algorithm>
#include <variant>

#include "kernels/integers.h"

namespace shale {
namespace {

constexpr int64_t kItemAlignment = 256;

}  // namespace

HostItemLayout::HostItemLayout(const StepProgram& program) {
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const auto* copy = std::get_if<HostCopy>(&program.instructions[id].action);
      if (copy == nullptr) continue;
      Range& range = ranges_[static_cast<int>(copy->item)];
      range.iteration_bytes = std::max(range.iteration_bytes, copy->device.extent_bytes());
      range.iterations = std::max(range.iterations, loop.repeat);
    }
  }
  for (Range& range : ranges_) {
    range.offset_bytes = size_bytes_;
    size_bytes_ += RoundUp(range.size_bytes(), kItemAlignment);
  }
}

HostMemoryPlan PlanHostMemory(absl::Span<const ProgramAndPlan> programs, int64_t staging_bytes) {
  HostMemoryPlan plan{.staging_bytes = RoundUp(staging_bytes, kHostPartAlignment)};
  for (const auto& [program, memory] : programs) {
    plan.items_bytes = std::max(plan.items_bytes, RoundUp(HostItemLayout(program).size_bytes(), kHostPartAlignment));
    plan.offload_bytes = std::max(plan.offload_bytes, RoundUp(memory.host_bytes, kHostPartAlignment));
  }
  return plan;
}

}  // namespace shale
