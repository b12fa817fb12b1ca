// OverlapCollectives: the pass that lets collectives run while units compute.
#include <algorithm>
#include <vector>

#include "engine/compile/program/accesses.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"

namespace shale {
namespace {

// Moves the all-gathers of each visit to the beginning of the visit that is `prefetch` earlier.
void GatherAhead(StepProgram& program, const std::vector<VisitRange>& visits, int64_t prefetch) {
  std::vector<std::vector<InstructionId>> gathers(visits.size());  // By visit.
  size_t visit = 0;
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    const Instruction& instruction = program.instructions[id];
    while (visit < visits.size() && visits[visit].begin < id) ++visit;
    if (instruction.stream == StreamId::kGather && instruction.unit >= 0) gathers[visit].push_back(id);
  }
  ProgramEdit edit(program);
  for (int64_t v = 1; v < std::ssize(visits) && prefetch > 0; ++v) {
    const int64_t to = std::max<int64_t>(0, v - prefetch);
    for (const InstructionId gather : gathers[v]) {
      if (gathers[to].empty()) {
        edit.MoveAhead(visits[to].begin, gather);
      } else if (to == 0) {
        edit.MoveAfter(gathers[0].back(), gather);  // Those of the first visit stay where they are.
      } else {
        edit.MoveBefore(gathers[to].front(), gather);
      }
    }
  }
  edit.Apply();
}

// Holds what reductions read, and nothing else needs any more, while the next visit runs.
void HoldWhileReducing(StepProgram& program, const std::vector<VisitRange>& visits) {
  std::vector<InstructionId> last_use(program.buffers.size(), -1);
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                     [&](absl::string_view, const Tensor& t, Access) { last_use[t.where.symbol] = id; });
  }
  for (size_t v = 0; v + 1 < visits.size(); ++v) {
    const VisitRange& next = visits[v + 1];
    InstructionId until = next.begin;
    while (until < next.last && program.instructions[until + 1].phase != Phase::kReduce) ++until;
    for (InstructionId id = visits[v].begin; id <= visits[v].last; ++id) {
      const auto* reduction = std::get_if<Collective>(&program.instructions[id].action);
      if (reduction == nullptr) continue;
      const bool exchanges = reduction->kind == CollectiveKind::kAllToAll;
      if (!exchanges && reduction->kind != CollectiveKind::kReduceScatterSum) continue;
      const auto hold = [&](const Tensor& t) {
        Buffer& buffer = program.buffers[t.where.symbol];
        if (!buffer.persistent && last_use[t.where.symbol] <= visits[v].last) buffer.held_until = until;
      };
      hold(reduction->full);
      if (exchanges) hold(reduction->local);
    }
  }
}

}  // namespace

void OverlapCollectives(StepProgram& program, int64_t prefetch) {
  const std::vector<VisitRange> visits = VisitsOf(program);
  HoldWhileReducing(program, visits);
  GatherAhead(program, visits, prefetch);
}

}  // namespace shale
