// Issues: the work that one run of a program enqueues. Each issue is one instruction in one iteration of its loop.
//
// This file defines what `last_iteration_only` and `first_iteration_differs` mean. All code that goes through a program
// in issue order uses IssuesOf or IssuesOfIteration, and all code that asks for the form of an op uses TakeForm,
// VisitForms or VisitInstruction (accesses.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <variant>

#include "engine/compile/program/accesses.h"
#include "engine/compile/program/program.h"
#include "kernels/op.h"

namespace shale {

// An instruction in one iteration of its loop.
struct Issue {
  InstructionId id = 0;
  size_t loop = 0;  // Index into StepProgram::loops.
  int64_t iteration = 0;
  bool first_iteration() const { return iteration == 0; }
};

// Returns whether an instruction of `loop` is issued in the given iteration of that loop.
inline bool IsIssued(const Instruction& instruction, const Loop& loop, int64_t iteration) {
  return !instruction.last_iteration_only || iteration + 1 == loop.repeat;
}

// Returns how many times one run of the program issues an instruction of `loop`.
inline int64_t TimesIssued(const Instruction& instruction, const Loop& loop) {
  return instruction.last_iteration_only ? 1 : loop.repeat;
}

// A range of issues, in issue order. Borrows the program, which must outlive it.
class IssueRange {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Issue;
    using difference_type = std::ptrdiff_t;
    using pointer = const Issue*;
    using reference = const Issue&;

    const Issue& operator*() const { return at_; }
    const Issue* operator->() const { return &at_; }
    Iterator& operator++() {
      ++at_.id;
      Settle();
      return *this;
    }
    bool operator==(const Iterator& other) const {
      return at_.loop == other.at_.loop && at_.iteration == other.at_.iteration && at_.id == other.at_.id;
    }

   private:
    friend class IssueRange;
    Iterator(const StepProgram& program, int64_t most_iterations, size_t loop, int64_t iteration)
        : program_(&program), most_iterations_(most_iterations), at_{.loop = loop, .iteration = iteration} {
      BeginIteration();
      Settle();
    }
    void BeginIteration() { at_.id = at_.loop < program_->loops.size() ? program_->loops[at_.loop].begin : 0; }
    // Advances to the next instruction that is issued, if the current one is not.
    void Settle() {
      while (at_.loop < program_->loops.size()) {
        const Loop& loop = program_->loops[at_.loop];
        const int64_t iterations = std::min(loop.repeat, most_iterations_);
        if (at_.id == loop.end) {
          if (++at_.iteration == iterations) {
            ++at_.loop;
            at_.iteration = 0;
          }
          BeginIteration();
        } else if (IsIssued(program_->instructions[at_.id], {loop.begin, loop.end, iterations}, at_.iteration)) {
          return;
        } else {
          ++at_.id;
        }
      }
    }
    const StepProgram* program_;
    int64_t most_iterations_;
    Issue at_;
  };

  // Covers the issues from one iteration of a loop up to another iteration, which is excluded.
  IssueRange(const StepProgram& program, int64_t most_iterations, size_t loop, int64_t iteration, size_t end_loop,
             int64_t end_iteration)
      : begin_(program, most_iterations, loop, iteration), end_(program, most_iterations, end_loop, end_iteration) {}

  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  Iterator begin_, end_;
};

// Returns all issues of a run. Loops that repeat more than `most_iterations` times are unrolled for that many
// iterations only; the last of these stands for the loop's last iteration. REQUIRES: most_iterations >= 2, so that the
// first iteration is not also the last one of such a loop.
inline IssueRange IssuesOf(const StepProgram& program, int64_t most_iterations = std::numeric_limits<int64_t>::max()) {
  return {program, most_iterations, 0, 0, program.loops.size(), 0};
}

// Returns the issues of one iteration of the loop with index `loop`.
inline IssueRange IssuesOfIteration(const StepProgram& program, size_t loop, int64_t iteration) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  const bool last = iteration + 1 == program.loops[loop].repeat;
  return {program, kAll, loop, iteration, last ? loop + 1 : loop, last ? 0 : iteration + 1};
}

// Returns the number of issues of one run.
inline int64_t CountIssues(const StepProgram& program) {
  int64_t count = 0;
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) count += TimesIssued(program.instructions[id], loop);
  }
  return count;
}

// Calls visitor(const Instruction&, times issued in a run) for every instruction.
template <class Visitor>
void VisitWithTimes(const StepProgram& program, Visitor&& visitor) {
  for (const Loop& loop : program.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      visitor(program.instructions[id], TimesIssued(program.instructions[id], loop));
    }
  }
}

// Calls visitor(const Op&) for every form in which a run issues the instruction's op: first the form of the later
// iterations, then the form of the first iteration if that one differs. Does nothing for other actions.
template <class Visitor>
void VisitForms(const Instruction& instruction, Visitor&& visitor) {
  const Op* op = std::get_if<Op>(&instruction.action);
  if (op == nullptr) return;
  visitor(*op);
  if (!instruction.first_iteration_differs) return;
  Op first = *op;
  MakeFirst(first);
  visitor(static_cast<const Op&>(first));
}

// Changes the op of `instruction` into the form in which an iteration of its loop issues it.
inline void TakeForm(Instruction& instruction, bool first_iteration) {
  if (first_iteration && instruction.first_iteration_differs) MakeFirst(std::get<Op>(instruction.action));
}

// Returns whether an operand of the instruction lies in the slot of its micro-batch, and therefore has a different
// address in each iteration.
inline bool UsesSlots(const StepProgram& program, const Instruction& instruction) {
  bool uses = false;
  VisitInstruction(instruction, /*first_iteration=*/false, [&](absl::string_view, const Tensor& t, Access) {
    uses |= program.buffers[t.where.symbol].slots > 1;
  });
  return uses;
}

}  // namespace shale
