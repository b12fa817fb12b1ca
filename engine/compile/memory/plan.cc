#include "engine/compile/memory/plan.h"

#include <algorithm>
#include <numeric>
#include <variant>

#include "absl/strings/str_cat.h"
#include "engine/compile/memory/packing.h"
#include "engine/compile/program/program.h"
#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr size_t kLargestBuffers = 12;

absl::Status CheckOptions(const MemoryPlanOptions& options) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (options.alignment_bytes < 1 || options.alignment_bytes > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("alignment of ", options.alignment_bytes, " bytes; wanted 1 to 2^40"));
  }
  if (options.red_zone_bytes < 0 || options.red_zone_bytes > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("red zones of ", options.red_zone_bytes, " bytes; wanted 0 to 2^40"));
  }
  return absl::OkStatus();
}

// Returns the bytes that each buffer takes, including red zone and alignment. Fails if their sum does not fit int64.
// For host memory the limit is half of that, because its addresses begin in the middle of the int64 range.
absl::StatusOr<std::vector<int64_t>> Footprints(const StepProgram& program, const std::vector<Lifetime>& lifetimes,
                                                const MemoryPlanOptions& options) {
  std::vector<int64_t> footprints(program.buffers.size(), 0);
  int64_t total[2] = {0, kHostMemoryBegin};  // By MemoryKind.
  for (size_t b = 0; b < footprints.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (!buffer.persistent && !lifetimes[b].used()) continue;
    const int64_t alignment = options.alignment_bytes;
    int64_t bytes = 0;
    if (__builtin_add_overflow(buffer.size_bytes(), options.red_zone_bytes + alignment - 1, &bytes) ||
        __builtin_add_overflow(total[static_cast<int>(buffer.memory)], RoundDown(bytes, alignment),
                               &total[static_cast<int>(buffer.memory)])) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the buffers of one rank sum to more than 2^", buffer.memory == MemoryKind::kHost ? 62 : 63,
                       " bytes at ", buffer.name, " (", buffer.slots, " slots of ", buffer.slot_bytes, " bytes)"));
    }
    footprints[b] = RoundDown(bytes, alignment);
  }
  return footprints;
}

// Assigns addresses, from `begin` on, to the transient buffers of one kind of memory.
void PlaceTransients(const StepProgram& program, const std::vector<Lifetime>& lifetimes,
                     const std::vector<int64_t>& footprints, MemoryKind memory, int64_t begin, MemoryPlan& plan) {
  std::vector<BufferId> transients;
  std::vector<PackInterval> intervals;
  for (size_t b = 0; b < footprints.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent || buffer.memory != memory || !lifetimes[b].used()) continue;
    transients.push_back(static_cast<BufferId>(b));
    intervals.push_back({footprints[b], lifetimes[b].first, lifetimes[b].last});
  }
  const PackedIntervals packing = PackIntervals(intervals);
  for (size_t i = 0; i < transients.size(); ++i) plan.addresses[transients[i]] = begin + packing.offsets[i];
}

// Returns the sums of live buffers of one kind of memory at each instruction, and at last what is held between steps.
// Sizes count without alignment and red zones.
std::vector<int64_t> LiveSums(const StepProgram& program, const std::vector<Lifetime>& lifetimes, MemoryKind memory) {
  std::vector<int64_t> sums(program.instructions.size() + 1, 0);
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.memory != memory || (!buffer.persistent && !lifetimes[b].used())) continue;
    sums[buffer.persistent ? 0 : lifetimes[b].first] += buffer.size_bytes();
    if (!buffer.persistent) sums[lifetimes[b].last + 1] -= buffer.size_bytes();
  }
  std::partial_sum(sums.begin(), sums.end(), sums.begin());
  return sums;
}

// Fills in the lower bound, the instruction that reaches it, and the buffers that are live there.
void FindPeak(const StepProgram& program, const std::vector<Lifetime>& lifetimes, MemoryPlan& plan) {
  const auto alive_at = [&](size_t b, InstructionId id) {
    if (program.buffers[b].memory == MemoryKind::kHost) return false;
    return program.buffers[b].persistent || (lifetimes[b].first <= id && id <= lifetimes[b].last);
  };
  const std::vector<int64_t> live = LiveSums(program, lifetimes, MemoryKind::kDevice);
  const auto peak = std::max_element(live.begin(), live.end());
  plan.lower_bound_bytes = *peak;
  if (peak + 1 != live.end()) plan.peak_instruction = static_cast<InstructionId>(peak - live.begin());
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    if (!alive_at(b, plan.peak_instruction)) continue;
    plan.bytes_at_peak[static_cast<int>(program.buffers[b].category)] += program.buffers[b].size_bytes();
    plan.largest_at_peak.push_back(static_cast<BufferId>(b));
  }
  std::stable_sort(plan.largest_at_peak.begin(), plan.largest_at_peak.end(), [&](BufferId a, BufferId b) {
    return program.buffers[a].size_bytes() > program.buffers[b].size_bytes();
  });
  if (plan.largest_at_peak.size() > kLargestBuffers) plan.largest_at_peak.resize(kLargestBuffers);
}

constexpr int64_t kItemAlignment = 256;

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const StepProgram& program, const MemoryPlanOptions& options) {
  SHALE_RETURN_IF_ERROR(CheckOptions(options));
  SHALE_RETURN_IF_ERROR(CheckStructure(program));
  const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  SHALE_ASSIGN_OR_RETURN(const std::vector<int64_t> footprints, Footprints(program, lifetimes, options));

  MemoryPlan plan;
  plan.addresses.assign(program.buffers.size(), 0);
  for (size_t b = 0; b < footprints.size(); ++b) {
    if (!program.buffers[b].persistent) continue;
    const bool host = program.buffers[b].memory == MemoryKind::kHost;
    int64_t& end = host ? plan.persistent_host_bytes : plan.persistent_bytes;
    plan.addresses[b] = (host ? kHostMemoryBegin : 0) + end;
    end += footprints[b];
  }
  PlaceTransients(program, lifetimes, footprints, MemoryKind::kDevice, plan.persistent_bytes, plan);
  PlaceTransients(program, lifetimes, footprints, MemoryKind::kHost, kHostMemoryBegin + plan.persistent_host_bytes,
                  plan);
  for (size_t b = 0; b < footprints.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (!buffer.persistent && !lifetimes[b].used()) continue;
    const int64_t end = plan.addresses[b] + buffer.size_bytes();
    if (buffer.memory == MemoryKind::kHost) {
      plan.host_bytes = std::max(plan.host_bytes, end - kHostMemoryBegin);
    } else {
      plan.peak_bytes = std::max(plan.peak_bytes, end);
    }
  }
  FindPeak(program, lifetimes, plan);
  return plan;
}

absl::StatusOr<MemoryPlan> PlanWithoutSharing(const StepProgram& program) {
  const std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  SHALE_ASSIGN_OR_RETURN(const std::vector<int64_t> footprints, Footprints(program, lifetimes, {}));
  const auto largest = [&](MemoryKind memory) {
    const std::vector<int64_t> sums = LiveSums(program, lifetimes, memory);
    return *std::max_element(sums.begin(), sums.end());
  };
  MemoryPlan plan{.lower_bound_bytes = largest(MemoryKind::kDevice),
                  .lower_bound_host_bytes = largest(MemoryKind::kHost)};
  int64_t end[2] = {0, kHostMemoryBegin};  // By MemoryKind.
  for (size_t b = 0; b < footprints.size(); ++b) {
    int64_t& next = end[static_cast<int>(program.buffers[b].memory)];
    plan.addresses.push_back(next);
    next += footprints[b];
  }
  return plan;
}

StepItemLayout::StepItemLayout(const StepProgram& program) {
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const auto* copy = std::get_if<StepItemCopy>(&program.instructions[id].action);
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
    plan.items_bytes = std::max(plan.items_bytes, RoundUp(StepItemLayout(program).size_bytes(), kHostPartAlignment));
    plan.offload_bytes = std::max(plan.offload_bytes, RoundUp(memory.host_bytes, kHostPartAlignment));
  }
  return plan;
}

}  // namespace shale
