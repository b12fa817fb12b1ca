// The works of a program (engine/plan/time/work.h).
#pragma once

#include <cstdint>

#include "engine/compile/program/issues.h"
#include "engine/compile/program/program.h"
#include "engine/plan/time/work.h"
#include "sharding/mesh.h"

namespace shale {

// Calls visitor(work, how many times a step does it) for each instruction, in each of its forms.
template <class Visitor>
void VisitWorks(const StepProgram& program, const Mesh& mesh, Visitor&& visitor) {
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      Instruction form = program.instructions[id];
      const int64_t times = TimesIssued(form, loop), firsts = form.first_iteration_differs ? 1 : 0;
      if (times > firsts) visitor(WorkOf(form, mesh), static_cast<double>(times - firsts));
      TakeForm(form, /*first_iteration=*/true);
      if (firsts > 0) visitor(WorkOf(form, mesh), 1.0);
    }
  }
}

}  // namespace shale
