#include "tests/engine/compile/memory/unrolled.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "kernels/ops/flat.h"

namespace shale::testing {
namespace {

bool Overlap(const ByteRange& a, const ByteRange& b) { return std::max(a.begin, b.begin) < std::min(a.end, b.end); }

// Returns, by issue, all issues that have finished when it starts.
std::vector<std::vector<bool>> FinishedBefore(const std::vector<UnrolledIssue>& issues) {
  std::vector<std::vector<bool>> finished(issues.size(), std::vector<bool>(issues.size(), false));
  std::vector<int> last(kStreams, -1);
  for (size_t i = 0; i < issues.size(); ++i) {
    std::vector<int> direct = issues[i].waits;
    if (last[issues[i].stream] >= 0) direct.push_back(last[issues[i].stream]);
    for (int d : direct) {
      finished[i][d] = true;
      for (int k = 0; k < d; ++k) {
        if (finished[d][k]) finished[i][k] = true;
      }
    }
    last[issues[i].stream] = static_cast<int>(i);
  }
  return finished;
}

std::string FindBadWait(const StepProgram& program) {
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      for (InstructionId wait : program.instructions[id].waits) {
        const Instruction& other = program.instructions[wait];
        const bool again = wait < loop.end && loop.repeat > 1 && !other.last_iteration_only;
        if (other.stream == program.instructions[id].stream) return absl::StrCat(id, " waits on its own stream");
        if (wait >= id && !again) return absl::StrCat(id, " waits for ", wait, ", which comes later");
      }
    }
  }
  return "";
}

std::string FindForeignRead(const StepProgram& program, const MemoryPlan& plan,
                            const std::vector<UnrolledIssue>& issues) {
  std::vector<BufferId> owner(plan.peak_bytes + plan.host_bytes, -1);
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    if (!program.buffers[b].persistent) continue;
    const auto id = static_cast<BufferId>(b);
    std::fill_n(owner.begin() + AddressOf(program, plan, id), program.buffers[b].size_bytes(), id);
  }
  for (size_t i = 0; i < issues.size(); ++i) {
    for (const UnrolledAccess& access : issues[i].accesses) {
      if (!access.reads) continue;
      for (const ByteRange& range : access.exact) {
        for (int64_t at = range.begin; at < range.end; ++at) {
          if (owner[at] != access.buffer) return absl::StrCat("issue ", i, " reads byte ", at, " of ", owner[at]);
        }
      }
    }
    for (const UnrolledAccess& access : issues[i].accesses) {
      if (!access.writes) continue;
      for (const ByteRange& range : access.exact) {
        std::fill(owner.begin() + range.begin, owner.begin() + range.end, access.buffer);
      }
    }
  }
  return "";
}

}  // namespace

int64_t AddressOf(const StepProgram& program, const MemoryPlan& plan, BufferId b) {
  const bool host = program.buffers[b].memory == MemoryKind::kHost;
  return plan.addresses[b] - (host ? kHostMemoryBegin - plan.peak_bytes : 0);
}

std::vector<UnrolledIssue> Unroll(const StepProgram& program, const MemoryPlan& plan, int64_t rank) {
  std::vector<UnrolledIssue> issues;
  std::vector<int> latest(program.instructions.size(), -1);
  for (const Loop& loop : program.loops) {
    for (int64_t iteration = 0; iteration < loop.repeat; ++iteration) {
      for (InstructionId id = loop.begin; id < loop.end; ++id) {
        const Instruction& instruction = program.instructions[id];
        if (instruction.last_iteration_only && iteration + 1 < loop.repeat) continue;
        UnrolledIssue issue{.instruction = id, .iteration = iteration, .stream = static_cast<int>(instruction.stream)};
        for (InstructionId wait : instruction.waits) {
          if (latest[wait] >= 0) issue.waits.push_back(latest[wait]);
        }
        VisitInstruction(instruction, iteration == 0, [&](absl::string_view, const Tensor& t, Access access) {
          const Buffer& buffer = program.buffers[t.where.symbol];
          const int64_t address = AddressOf(program, plan, t.where.symbol);
          const int64_t slot = buffer.slots > 1 ? instruction.micro_batch + iteration : 0;
          int64_t begin = slot * buffer.slot_bytes + t.where.offset_bytes + rank * t.where.shard_stride_bytes;
          UnrolledAccess a{.buffer = t.where.symbol,
                           .reads = access != Access::kWrite,
                           .writes = access != Access::kRead,
                           .touched = {address + begin, address + begin + t.extent_bytes()}};
          if (buffer.slots > 1 || t.where.shard_stride_bytes != 0) a.touched = {address, address + buffer.size_bytes()};
          a.in_slot = {{begin, begin + t.extent_bytes()}};
          const Op* op = std::get_if<Op>(&instruction.action);
          const ZeroRanges* zero = op == nullptr ? nullptr : op->As<ZeroRanges>();
          if (zero != nullptr && &zero->x_N == &t) {
            a.reads = false;
            a.in_slot.clear();
            for (const ElementRange& r : *zero->ranges) {
              a.in_slot.push_back({begin + r.begin * SizeOf(t.dtype), begin + r.end * SizeOf(t.dtype)});
            }
          }
          for (const ByteRange& r : a.in_slot) a.exact.push_back({address + r.begin, address + r.end});
          issue.accesses.push_back(a);
        });
        latest[id] = static_cast<int>(issues.size());
        issues.push_back(std::move(issue));
      }
    }
  }
  return issues;
}

std::string FindViolation(const StepProgram& program, const MemoryPlan& plan) {
  if (std::string bad = FindBadWait(program); !bad.empty()) return bad;
  const std::vector<UnrolledIssue> issues = Unroll(program, plan, /*rank=*/0);
  const std::vector<std::vector<bool>> finished = FinishedBefore(issues);
  for (size_t j = 0; j < issues.size(); ++j) {
    for (size_t i = 0; i <= j; ++i) {
      if (i < j && finished[j][i]) continue;
      for (const UnrolledAccess& a : issues[i].accesses) {
        for (const UnrolledAccess& b : issues[j].accesses) {
          if (i == j && a.buffer == b.buffer) continue;  // Works in place.
          // ZeroRanges counts with all its bytes here: those that it does not zero must keep their contents.
          if ((a.writes || b.writes) && Overlap(a.touched, b.touched)) {
            return absl::StrCat("issues ", i, " and ", j, " (instructions ", issues[i].instruction, " and ",
                                issues[j].instruction, ") meet");
          }
        }
      }
    }
  }
  return FindForeignRead(program, plan, issues);
}

}  // namespace shale::testing
