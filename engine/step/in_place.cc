#include "engine/step/in_place.h"

#include <utility>
#include <vector>

#include "engine/program/lifetimes.h"
#include "engine/program/operands.h"
#include "engine/program/structure.h"

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

Op WithOutputAt(Op op, BufferId output, BufferId input) {
  VisitOperands(op, [&](absl::string_view, Tensor& t, Access access) {
    if (t.present() && access == Access::kWrite && t.where.symbol == output) t.where.symbol = input;
  });
  return op;
}

// Returns, by buffer, the instructions that use it, ascending. One that uses it twice may stand there twice.
std::vector<std::vector<InstructionId>> UsersOf(const StepProgram& program) {
  std::vector<std::vector<InstructionId>> users(program.buffers.size());
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                     [&](absl::string_view, const Tensor& t, Access) { users[t.where.symbol].push_back(id); });
  }
  return users;
}

}  // namespace

void WorkInPlace(StepProgram& program) {
  if (!CheckStructure(program).ok()) return;  // Planning rejects the program and says why.
  std::vector<Lifetime> lifetimes = ComputeLifetimes(program);
  std::vector<std::vector<InstructionId>> users = UsersOf(program);
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const Op* op = std::get_if<Op>(&program.instructions[id].action);
      if (op == nullptr) continue;
      std::vector<BufferId> dying, born;
      VisitOperands(*op, [&](absl::string_view, const Tensor& t, Access access) {
        if (!t.present() || !IsWholeBuffer(program, t)) return;
        const BufferId b = t.where.symbol;
        if (!IsLocal(program.buffers[b], lifetimes[b], loop)) return;
        if (access == Access::kRead && lifetimes[b].last == id) dying.push_back(b);
        if (access == Access::kWrite && lifetimes[b].first == id) born.push_back(b);
      });
      for (BufferId output : born) {
        for (BufferId& input : dying) {
          if (input < 0 || program.buffers[input].slot_bytes != program.buffers[output].slot_bytes) continue;
          if (!Validate(WithOutputAt(std::get<Op>(program.instructions[id].action), output, input)).ok()) continue;
          lifetimes[input].last = lifetimes[output].last;
          Buffer& shared = program.buffers[input];
          // The merged buffer takes the name and category of the output, which may outlive the unit.
          if (shared.category == BufferCategory::kWorkspace) {
            shared.name = program.buffers[output].name;
            shared.category = program.buffers[output].category;
          }
          for (InstructionId user : users[output]) RenameBuffer(program.instructions[user], output, input);
          users[input].insert(users[input].end(), users[output].begin(), users[output].end());
          input = -1;  // Taken: no other output may use it.
          break;
        }
      }
    }
  }
}

}  // namespace shale
