#include "kernels/check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/memory/checked_bytes.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/program/program.h"
#include "kernels/op.h"

namespace shale {
namespace {

// Loops are unrolled for this many iterations: the first two, two that stand for all iterations in the middle, and the
// last.
constexpr int64_t kCheckedIterations = 5;

// An operand in the arena or in host memory.
struct ArenaOperand {
  BufferId buffer = -1;
  bool reads = false, writes = false;
  int64_t begin = 0, end = 0;            // Bytes that it may access, on any rank and in any iteration.
  int64_t slot_begin = 0, slot_end = 0;  // Bytes within its slot, on rank 0.
  int32_t cell_begin = 0, cell_end = 0;  // [begin, end), in cells of the tree.
  // Set if the op writes only these elements of the operand and reads none. Each has `element_bytes` bytes.
  const std::vector<ElementRange>* ranges = nullptr;
  int64_t element_bytes = 0;
};

// One iteration of a loop, or several that are alike.
struct Iterations {
  int64_t first = 0;
  int64_t last = 0;
};

// Returns the iterations that unrolled iteration `index` stands for. Two consecutive ones stand for all middle
// iterations, so that the accesses of one of these are also checked against those of a later one.
Iterations IterationsOf(const Loop& loop, int64_t index) {
  if (loop.repeat <= kCheckedIterations || index < 2) return {index, index};
  if (index == kCheckedIterations - 1) return {loop.repeat - 1, loop.repeat - 1};
  return {2, loop.repeat - 2};
}

// An instruction in one iteration of its loop, or in several that are alike.
struct CheckedIssue {
  InstructionId instruction = -1;
  Iterations iterations;
  // By stream: the last issue that has finished when this one has finished.
  IssueByStream finished = NoIssues();
};

class Checker {
 public:
  Checker(const StepProgram& program, const MemoryPlan& plan) : program_(program), plan_(plan) {}

  absl::Status Run(const WorkLimits& limits) {
    SHALE_RETURN_IF_ERROR(CheckStructure(program_));
    SHALE_RETURN_IF_ERROR(CheckAddresses());
    SHALE_RETURN_IF_ERROR(CheckWaits(program_));
    CollectOperands();
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (!buffer.persistent) continue;
      owners_.Set(plan_.addresses[b], plan_.addresses[b] + buffer.size_bytes(), static_cast<BufferId>(b));
    }
    for (const Issue& issue : IssuesOf(program_, kCheckedIterations)) {
      SHALE_RETURN_IF_ERROR(limits.Check());
      SHALE_RETURN_IF_ERROR(CheckIssue(issue.id, IterationsOf(program_.loops[issue.loop], issue.iteration)));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckAddresses() const {
    if (plan_.addresses.size() != program_.buffers.size()) {
      return absl::InternalError(absl::StrCat("the plan has ", plan_.addresses.size(), " addresses for ",
                                              program_.buffers.size(), " buffers"));
    }
    std::vector<bool> used(program_.buffers.size(), false);
    for (const Instruction& instruction : program_.instructions) {
      VisitInstruction(instruction, /*first_iteration=*/false,
                       [&](absl::string_view, const Tensor& t, Access) { used[t.where.symbol] = true; });
    }
    for (size_t b = 0; b < used.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      const bool host = buffer.memory == MemoryKind::kHost;
      const int64_t address = plan_.addresses[b] - (host ? kHostMemoryBegin : 0), bytes = buffer.size_bytes();
      const int64_t planned = host ? plan_.host_bytes : plan_.peak_bytes;
      if ((!used[b] && !buffer.persistent) || (address >= 0 && bytes <= planned - address)) continue;
      return absl::InternalError(absl::StrCat("buffer ", buffer.name, " of ", bytes, " bytes lies at ", address,
                                              ", outside the ", planned, " bytes of ", host ? "host memory in " : "",
                                              "the plan"));
    }
    return absl::OkStatus();
  }

  // Collects all operands, and divides the arena and host memory into cells at the bytes where operands begin or end.
  void CollectOperands() {
    std::vector<int64_t> cuts;
    for (const Instruction& instruction : program_.instructions) {
      first_iteration_.push_back(OperandsOf(instruction, true));
      later_iterations_.push_back(instruction.first_iteration_differs ? OperandsOf(instruction, false)
                                                                      : std::vector<ArenaOperand>());
      for (const ArenaOperand& operand : first_iteration_.back()) {
        cuts.push_back(operand.begin);
        cuts.push_back(operand.end);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    for (auto* iterations : {&first_iteration_, &later_iterations_}) {
      for (std::vector<ArenaOperand>& operands : *iterations) {
        for (ArenaOperand& operand : operands) {
          operand.cell_begin = std::lower_bound(cuts.begin(), cuts.end(), operand.begin) - cuts.begin();
          operand.cell_end = std::lower_bound(cuts.begin(), cuts.end(), operand.end) - cuts.begin();
        }
      }
    }
    tree_ = AccessTree(std::max<int32_t>(1, std::ssize(cuts)));
    latest_.assign(program_.instructions.size(), -1);
  }

  std::vector<ArenaOperand> OperandsOf(const Instruction& instruction, bool first_iteration) const {
    std::vector<ArenaOperand> operands;
    VisitInstruction(instruction, first_iteration, [&](absl::string_view, const Tensor& t, Access access) {
      const Buffer& buffer = program_.buffers[t.where.symbol];
      ArenaOperand operand{.buffer = t.where.symbol,
                           .reads = access != Access::kWrite,
                           .writes = access != Access::kRead,
                           .begin = plan_.addresses[t.where.symbol],
                           .slot_begin = t.where.offset_bytes,
                           .slot_end = t.where.offset_bytes + t.extent_bytes()};
      operand.end = operand.begin + buffer.size_bytes();
      if (buffer.slots == 1 && t.where.shard_stride_bytes == 0) {
        operand.end = operand.begin + operand.slot_end;
        operand.begin += operand.slot_begin;
      }
      if (const auto* op = std::get_if<Op>(&instruction.action); op != nullptr && access == Access::kReadWrite) {
        operand.ranges = WrittenRanges(*op);  // It reads nothing then.
        operand.element_bytes = SizeOf(t.dtype);
      }
      if (t.extent_bytes() > 0) operands.push_back(operand);
    });
    return operands;
  }

  const std::vector<ArenaOperand>& Operands(const CheckedIssue& issue) const {
    const bool later = issue.iterations.first > 0 && program_.instructions[issue.instruction].first_iteration_differs;
    return (later ? later_iterations_ : first_iteration_)[issue.instruction];
  }

  // Returns where bytes [begin, end) of an operand's slot lie. For several iterations, the range extends from the slot
  // of the first one to the slot of the last one.
  ByteRange IterationBytes(const CheckedIssue& issue, const ArenaOperand& operand, int64_t begin, int64_t end) const {
    const Buffer& buffer = program_.buffers[operand.buffer];
    const int64_t address = plan_.addresses[operand.buffer];
    if (buffer.slots == 1) return {address + begin, address + end};
    const int64_t micro_batch = program_.instructions[issue.instruction].micro_batch;
    return {address + (micro_batch + issue.iterations.first) * buffer.slot_bytes + begin,
            address + (micro_batch + issue.iterations.last) * buffer.slot_bytes + end};
  }

  absl::Status CheckIssue(InstructionId id, Iterations iterations) {
    const Instruction& instruction = program_.instructions[id];
    const int stream = static_cast<int>(instruction.stream);
    CheckedIssue issue{.instruction = id, .iterations = iterations};
    const auto join = [&](int32_t earlier) {
      if (earlier < 0) return;
      for (int s = 0; s < kStreams; ++s) {
        issue.finished[s] = std::max(issue.finished[s], issues_[earlier].finished[s]);
      }
    };
    join(last_[stream]);
    for (InstructionId wait : instruction.waits) join(latest_[wait]);

    const int32_t self = static_cast<int32_t>(issues_.size());
    SHALE_RETURN_IF_ERROR(CheckOverlap(issue));
    for (const ArenaOperand& operand : Operands(issue)) {
      SHALE_RETURN_IF_ERROR(CheckOrder(issue, operand));
      if (operand.reads && operand.ranges == nullptr) SHALE_RETURN_IF_ERROR(CheckContent(issue, operand));
    }
    for (const ArenaOperand& operand : Operands(issue)) {
      if (operand.reads) tree_.Record(operand.cell_begin, operand.cell_end, stream, /*write=*/false, self);
      if (operand.writes) tree_.Record(operand.cell_begin, operand.cell_end, stream, /*write=*/true, self);
      if (operand.writes) Own(issue, operand);
    }
    issue.finished[stream] = self;
    last_[stream] = latest_[id] = self;
    issues_.push_back(issue);
    return absl::OkStatus();
  }

  // Checks that the bytes that an instruction writes do not overlap its operands in other buffers. Within one buffer an
  // instruction may work in place.
  absl::Status CheckOverlap(const CheckedIssue& issue) const {
    const std::vector<ArenaOperand>& operands = Operands(issue);
    for (const ArenaOperand& written : operands) {
      if (!written.writes) continue;
      for (const ArenaOperand& other : operands) {
        const int64_t begin = std::max(written.begin, other.begin), end = std::min(written.end, other.end);
        if (other.buffer == written.buffer || begin >= end) continue;
        return absl::InternalError(absl::StrCat(DescribeIssue(issue), " writes ", BytesOf(written, begin, end),
                                                ", which are ", BytesOf(other, begin, end),
                                                ", its other operand: ", AddressText(begin, end)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckOrder(const CheckedIssue& issue, const ArenaOperand& operand) const {
    const LatestAccesses latest = tree_.Latest(operand.cell_begin, operand.cell_end);
    const int own = static_cast<int>(program_.instructions[issue.instruction].stream);
    for (int s = 0; s < kStreams; ++s) {
      if (s == own) continue;  // FIFO order already orders the two.
      if (latest.write[s] > issue.finished[s]) return Unordered(issue, operand, latest.write[s], /*by_write=*/true);
      if (operand.writes && latest.read[s] > issue.finished[s]) {
        return Unordered(issue, operand, latest.read[s], /*by_write=*/false);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckContent(const CheckedIssue& issue, const ArenaOperand& operand) const {
    const ByteRange bytes = IterationBytes(issue, operand, operand.slot_begin, operand.slot_end);
    const int64_t foreign = owners_.FirstForeign(bytes.begin, bytes.end, operand.buffer);
    return foreign == bytes.end ? absl::OkStatus() : Foreign(issue, operand, foreign);
  }

  void Own(const CheckedIssue& issue, const ArenaOperand& operand) {
    const auto own = [&](int64_t begin, int64_t end) {
      const ByteRange bytes = IterationBytes(issue, operand, begin, end);
      owners_.Set(bytes.begin, bytes.end, operand.buffer);
    };
    if (operand.ranges == nullptr) {
      own(operand.slot_begin, operand.slot_end);
      return;
    }
    for (const ElementRange& range : *operand.ranges) {
      own(operand.slot_begin + range.begin * operand.element_bytes,
          operand.slot_begin + range.end * operand.element_bytes);
    }
  }

  std::string DescribeIssue(const CheckedIssue& issue) const {
    std::string text = Describe(program_, issue.instruction);
    if (issue.iterations.first > 0) absl::StrAppend(&text, " in iteration ", issue.iterations.first);
    return text;
  }

  // Returns for example "bytes [0, 256) of the arena".
  static std::string AddressText(int64_t begin, int64_t end) {
    const int64_t base = begin >= kHostMemoryBegin ? kHostMemoryBegin : 0;
    return absl::StrCat("bytes [", begin - base, ", ", end - base, ") of ", base > 0 ? "host memory" : "the arena");
  }

  // Returns for example "bytes [0, 256) of buffer x".
  std::string BytesOf(const ArenaOperand& operand, int64_t begin, int64_t end) const {
    const int64_t address = plan_.addresses[operand.buffer];
    return absl::StrCat("bytes [", begin - address, ", ", end - address, ") of buffer ",
                        program_.buffers[operand.buffer].name);
  }

  absl::Status Unordered(const CheckedIssue& issue, const ArenaOperand& operand, int32_t earlier, bool by_write) const {
    for (const ArenaOperand& other : Operands(issues_[earlier])) {
      const int64_t begin = std::max(operand.begin, other.begin), end = std::min(operand.end, other.end);
      if (begin >= end || !(by_write ? other.writes : other.reads)) continue;
      return absl::InternalError(
          absl::StrCat(DescribeIssue(issue), operand.writes ? " writes " : " reads ", BytesOf(operand, begin, end),
                       ", while ", DescribeIssue(issues_[earlier]), by_write ? " may still write " : " may still read ",
                       BytesOf(other, begin, end), ": ", AddressText(begin, end), ", and no wait orders the two"));
    }
    return absl::InternalError("an access without an operand");
  }

  // Returns the error for a read of bytes that belong to another buffer or were never written. The message names the
  // instruction that wrote them last.
  absl::Status Foreign(const CheckedIssue& issue, const ArenaOperand& operand, int64_t at) const {
    const std::string text = absl::StrCat(DescribeIssue(issue), " reads ", BytesOf(operand, at, at + 1), " (",
                                          AddressText(at, at + 1), "), ");
    for (auto earlier = issues_.rbegin(); earlier != issues_.rend(); ++earlier) {
      for (const ArenaOperand& other : Operands(*earlier)) {
        const ByteRange bytes = IterationBytes(*earlier, other, other.slot_begin, other.slot_end);
        if (!other.writes || other.ranges != nullptr || other.buffer == operand.buffer) continue;
        if (at < bytes.begin || at >= bytes.end) continue;
        return absl::InternalError(absl::StrCat(text, "which ", DescribeIssue(*earlier), " has overwritten with ",
                                                BytesOf(other, at, at + 1)));
      }
    }
    return absl::InternalError(absl::StrCat(text, "which nothing has written before"));
  }

  const StepProgram& program_;
  const MemoryPlan& plan_;
  // By instruction. `later_iterations_` has operands only where they differ from those of the first iteration.
  std::vector<std::vector<ArenaOperand>> first_iteration_, later_iterations_;
  AccessTree tree_ = AccessTree(1);
  ByteOwners owners_;
  std::vector<CheckedIssue> issues_;  // In issue order.
  IssueByStream last_ = NoIssues();   // Latest issue on each stream.
  std::vector<int32_t> latest_;       // Latest issue of each instruction.
};

}  // namespace

absl::Status CheckProgram(const StepProgram& program, const MemoryPlan& plan, const WorkLimits& limits) {
  return Checker(program, plan).Run(limits);
}

}  // namespace shale
