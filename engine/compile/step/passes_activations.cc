#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "engine/strings/pattern.h"
#include "kernels/check.h"

namespace shale {
namespace {

bool IsWholeBuffer(const StepProgram& program, const Tensor& t) {
  return t.contiguous() && t.where.offset_bytes == 0 && t.where.shard_stride_bytes == 0 &&
         t.extent_bytes() == program.buffers[t.where.symbol].slot_bytes;
}

// Returns whether a transient buffer lives inside `loop` and keeps no contents from one iteration to the next.
bool IsLocal(const Buffer& buffer, const Lifetime& lifetime, const Loop& loop) {
  if (buffer.persistent || buffer.slots > 1 || buffer.held_until >= 0) return false;
  const bool whole_loop = lifetime.first == loop.begin && lifetime.last == loop.end - 1;
  return lifetime.first >= loop.begin && lifetime.last < loop.end && !whole_loop;
}

// Returns whether two tensors that both are a whole buffer have the same elements there.
bool IsSameShape(const Tensor& x, const Tensor& y) {
  return x.dtype == y.dtype && x.rank == y.rank && x.shape == y.shape && x.strides == y.strides;
}

// Lets an op write its output over an input, if it may. Otherwise leaves it as it is, and returns false. REQUIRES: the
// op uses both buffers as a whole, and they have the same size.
bool WritesOver(Op& op, BufferId output, BufferId input) {
  std::vector<Tensor*> moved;
  const Tensor* read = nullptr;
  VisitOperands(op, [&](absl::string_view, Tensor& t, Access access) {
    if (t.present() && access == Access::kWrite && t.where.symbol == output) moved.push_back(&t);
    if (t.present() && t.where.symbol == input) read = &t;
  });
  // No op may write over what it sees in another way. Validate takes long to say so.
  if (read == nullptr || (read->elements() > 0 && !IsSameShape(*moved.front(), *read))) return false;
  for (Tensor* t : moved) t->where.symbol = input;
  if (Validate(op).ok()) return true;
  for (Tensor* t : moved) t->where.symbol = output;
  return false;
}

// The least number of visits from the last use in forward to the first use in backward. Between these two lie a visit
// for each of the two copies, and one in which the tensor takes no room. If the two uses are in different loops, the
// copies need no visits.
constexpr int kLeastVisits = 4, kLeastVisitsOfLoops = 2;

struct Use {
  InstructionId id = -1;
  DType dtype = DType::kFloat32;
  bool writes = false;
};

class Offloader {
 public:
  explicit Offloader(StepProgram& program)
      : program_(program), edit_(program), visits_(VisitsOf(program)), uses_(program.buffers.size()) {
    int visit = -1;
    for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
      while (visit + 1 < std::ssize(visits_) && visits_[visit + 1].begin <= id) ++visit;
      visit_of_.push_back(visit);
      VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                       [&](absl::string_view, const Tensor& t, Access access) {
                         uses_[t.where.symbol].push_back({id, t.dtype, access != Access::kRead});
                       });
    }
  }

  absl::Status Run(const std::vector<std::string>& patterns, const WorkLimits& limits) {
    // Sorted by the first use in backward, so that tensors that are used first are fetched first.
    std::vector<std::pair<InstructionId, BufferId>> chosen;
    for (size_t b = 0; b < uses_.size(); ++b) {
      SHALE_RETURN_IF_ERROR(limits.Check());
      if (!IsActivation(program_.buffers[b], patterns)) continue;
      if (const auto next = FirstInBackward(uses_[b])) chosen.emplace_back(uses_[b][*next].id, b);
    }
    std::sort(chosen.begin(), chosen.end());
    for (const auto& [id, buffer] : chosen) Offload(buffer);
    edit_.Apply();
    // The step ends with a loop of its own, so there is always a next one.
    for (const auto& [buffer, loop] : held_through_) program_.buffers[buffer].held_until = program_.loops[loop].end;
    return absl::OkStatus();
  }

 private:
  bool IsActivation(const Buffer& buffer, const std::vector<std::string>& patterns) const {
    if (buffer.persistent || buffer.held_until >= 0) return false;
    if (buffer.category != BufferCategory::kActivations && buffer.category != BufferCategory::kActivationBoundaries) {
      return false;
    }
    return MatchesAny(patterns, buffer.name);
  }

  bool InOneLoop(InstructionId a, InstructionId b) const { return edit_.LoopOf(a) == edit_.LoopOf(b); }

  // Returns the index of the first use after the long break between forward and backward. Returns nullopt if there is
  // no such break, or if a use after it writes the buffer.
  std::optional<size_t> FirstInBackward(const std::vector<Use>& uses) const {
    for (size_t i = 1; i < uses.size(); ++i) {
      const int visits = visit_of_[uses[i].id] - visit_of_[uses[i - 1].id];
      if (visits < (InOneLoop(uses[i].id, uses[i - 1].id) ? kLeastVisits : kLeastVisitsOfLoops)) continue;
      const bool written = std::any_of(uses.begin() + static_cast<std::ptrdiff_t>(i), uses.end(),
                                       [](const Use& use) { return use.writes; });
      return written ? std::nullopt : std::optional<size_t>(i);
    }
    return std::nullopt;
  }

  // Returns the last instruction of a visit that computes; reductions may follow it.
  InstructionId LastCompute(const VisitRange& visit) const {
    const auto computes = [&](const Instruction& instruction) {
      return instruction.stream == StreamId::kCompute && instruction.unit == visit.unit;
    };
    InstructionId id = visit.last;
    while (id > visit.begin && !computes(program_.instructions[id])) --id;
    return id;
  }

  // Returns an instruction that copies all of a buffer to or from the host, for instruction `user`.
  Instruction Copy(BufferId device, BufferId host, DType dtype, InstructionId user, bool to_host) const {
    Tensor on_device = Tensor::Contiguous(dtype, {program_.buffers[device].slot_bytes / SizeOf(dtype)});
    Tensor on_host = on_device;
    on_device.where.symbol = device;
    on_host.where.symbol = host;
    return CopyInstruction(program_.instructions[user], on_device, on_host, to_host);
  }

  void Offload(BufferId buffer) {
    const std::vector<Use>& uses = uses_[buffer];
    const size_t next = *FirstInBackward(uses);
    const InstructionId last = uses[next - 1].id;

    Buffer waiting = program_.buffers[buffer];
    waiting.memory = MemoryKind::kHost;
    waiting.slots = InOneLoop(last, uses.back().id) ? 1 : program_.micro_batches;
    const BufferId host = edit_.AppendBuffer(waiting);
    const DType dtype = uses.front().dtype;
    edit_.InsertAfter(last, Copy(buffer, host, dtype, last, /*to_host=*/true));
    Buffer& kept = program_.buffers[buffer];
    const bool is_kept_in_loop = InOneLoop(uses.front().id, last);
    if (is_kept_in_loop) kept.slots = 1;
    const InstructionId release = LastCompute(visits_[visit_of_[last] + 1]);
    if (InOneLoop(release, last)) {
      kept.held_until = release;
    } else if (is_kept_in_loop) {
      held_through_.emplace_back(buffer, edit_.LoopOf(last));
    }

    BufferId fetched = -1;
    for (size_t i = next; i < uses.size(); ++i) {
      const InstructionId user = uses[i].id;
      if (i == next || !InOneLoop(user, uses[i - 1].id)) fetched = Fetch(waiting, host, dtype, user);
      RenameBuffer(program_.instructions[user], buffer, fetched);
    }
  }

  // Copies `host` back one visit ahead of `user`. Returns the buffer for it.
  BufferId Fetch(const Buffer& waiting, BufferId host, DType dtype, InstructionId user) {
    const BufferId fetched = edit_.AppendBuffer({.name = absl::StrCat(waiting.name, ".fetched"),
                                                 .category = waiting.category,
                                                 .slot_bytes = waiting.slot_bytes});
    const InstructionId ahead = visits_[visit_of_[user] - 1].begin;
    const bool is_ahead = InOneLoop(ahead, user);
    const size_t loop = edit_.LoopOf(user);
    if (!is_ahead) held_through_.emplace_back(fetched, loop);
    edit_.InsertBefore(is_ahead ? ahead : program_.loops[loop].begin,
                       Copy(fetched, host, dtype, user, /*to_host=*/false));
    return fetched;
  }

  StepProgram& program_;
  ProgramEdit edit_;
  const std::vector<VisitRange> visits_;
  std::vector<int> visit_of_;                              // By instruction: index of the latest visit that has begun.
  std::vector<std::vector<Use>> uses_;                     // By buffer.
  std::vector<std::pair<BufferId, size_t>> held_through_;  // Buffers held into the loop after this one.
};

}  // namespace

void WorkInPlace(StepProgram& program) {
  std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  // By buffer that was merged: the other one. No instruction uses it before the one that merged it.
  std::vector<BufferId> merged_into(program.buffers.size(), -1);
  std::vector<BufferId> dying, born;
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      Instruction& instruction = program.instructions[id];
      const auto rename = [&](Tensor& t) {
        if (merged_into[t.where.symbol] >= 0) t.where.symbol = merged_into[t.where.symbol];
      };
      Op* op = std::get_if<Op>(&instruction.action);
      if (op == nullptr) {
        ChangeOperands(instruction, rename);
        continue;
      }
      if (instruction.scratch.present()) rename(instruction.scratch);
      dying.clear();
      born.clear();
      VisitOperands(*op, [&](absl::string_view, Tensor& t, Access access) {
        if (!t.present()) return;
        rename(t);
        const BufferId b = t.where.symbol;
        const bool dies = access == Access::kRead && lifetimes[b].last == id;
        const bool begins = access == Access::kWrite && lifetimes[b].first == id;
        if (!dies && !begins) return;
        if (!IsWholeBuffer(program, t) || !IsLocal(program.buffers[b], lifetimes[b], loop)) return;
        (dies ? dying : born).push_back(b);
      });
      for (BufferId output : born) {
        for (BufferId& input : dying) {
          if (input < 0 || program.buffers[input].slot_bytes != program.buffers[output].slot_bytes) continue;
          if (!WritesOver(*op, output, input)) continue;
          lifetimes[input].last = lifetimes[output].last;
          Buffer& shared = program.buffers[input];
          // The merged buffer takes the name and category of the output, which may outlive the unit.
          if (shared.category == BufferCategory::kWorkspace) {
            shared.name = program.buffers[output].name;
            shared.category = program.buffers[output].category;
          }
          RenameBuffer(instruction, output, input);
          merged_into[output] = input;
          input = -1;  // Taken: no other output may use it.
          break;
        }
      }
    }
  }
}

absl::Status OffloadActivations(StepProgram& program, const std::vector<std::string>& patterns,
                                const WorkLimits& limits) {
  return patterns.empty() ? absl::OkStatus() : Offloader(program).Run(patterns, limits);
}

}  // namespace shale
