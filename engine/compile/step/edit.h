// ProgramEdit: the changes that a pass makes to a program, collected and then applied at once.
//
// Visits: the parts of a program that work for one unit.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/compile/program/program.h"

namespace shale {

// Collects instructions to insert and to move. All numbers that its functions take are those of the program before
// Apply. What is inserted at one place keeps the order of the calls. Borrows the program. A pass may change
// instructions and buffers in place as well, but it must not add or remove any while an edit is in use, nor read the
// action of an instruction that it has moved.
//
// [Note: numbers of buffers] Packing places buffers of equal size in the order of their numbers. So a buffer that a
// pass adds or moves gets the number that it would have if the compiler had emitted its first use right there: after
// all buffers that the instructions before use. A plan then does not depend on which pass added what.
class ProgramEdit {
 public:
  explicit ProgramEdit(StepProgram& program);

  // Adds a transient buffer of the size of `like`, and returns `like` placed at its start.
  Tensor AddTensor(std::string name, BufferCategory category, Tensor like, MemoryKind memory = MemoryKind::kDevice);
  // Adds a buffer whose number stays above those of all buffers there are, whatever uses it first.
  BufferId AppendBuffer(Buffer buffer);
  // Inserts an instruction before or after instruction `at`, in the same loop.
  void InsertBefore(InstructionId at, Instruction instruction);
  void InsertAfter(InstructionId at, Instruction instruction);
  // Inserts an instruction before `at` that instruction `user` needs: before all of the loop of `at` if the two are in
  // different loops.
  void InsertAhead(InstructionId at, InstructionId user, Instruction instruction);
  // Inserts an instruction before all of the loop of `at`: at the end of the loop before if that runs once, or else in
  // a loop of its own.
  void InsertBeforeLoop(InstructionId at, Instruction instruction);
  // Inserts an instruction after all of the loop of `at`, in a loop of its own that runs once.
  void InsertAfterLoop(InstructionId at, Instruction instruction);
  // Removes instruction `id`, and the buffers that nothing uses any more.
  void Remove(InstructionId id);
  // Moves instruction `id`, with the buffers that it is the first to use.
  void MoveBefore(InstructionId at, InstructionId id) { InsertBefore(at, Take(id)); }
  void MoveAfter(InstructionId at, InstructionId id) { InsertAfter(at, Take(id)); }
  void MoveAhead(InstructionId at, InstructionId id) { InsertAhead(at, id, Take(id)); }
  void MoveAfterLoop(InstructionId at, InstructionId id) { InsertAfterLoop(at, Take(id)); }
  // Lets a buffer keep its number, whichever instruction is the first to use it after the moves. For one that the
  // compiler added early.
  void KeepNumber(BufferId buffer) { placed_[buffer] = false; }

  // Returns the loop of an instruction, as an index into StepProgram::loops before Apply.
  size_t LoopOf(InstructionId id) const { return loop_of_[id]; }

  // Changes the program. Numbers instructions anew, also where loops and Buffer::held_until name them. Loops without
  // instructions go. Call it once.
  void Apply();

 private:
  // Moves an instruction out of the program. Its action is gone from there; its other fields can still be read.
  Instruction Take(InstructionId id);
  void OrderInstructions();
  // Numbers the buffers as the note says. REQUIRES: the instructions are in their new order.
  void NumberBuffers();

  StepProgram& program_;
  std::vector<std::vector<Instruction>> before_, after_;      // By instruction: what to insert around it.
  std::vector<std::vector<Instruction>> ahead_, after_loop_;  // By loop: what to insert before and after it.
  std::vector<size_t> loop_of_;                               // By instruction.
  bool inserts_ = false;                                      // Whether there is anything to insert or to move.
  std::vector<bool> taken_;                                   // By instruction: whether it moves.
  std::vector<bool> placed_;                                  // By buffer: whether it is new or moves.
};

// What a program does for one unit without a break, for one micro-batch or in LAYERED for all: the visits of
// engine/compile/step/visits.h, found in the instructions. Adjacent visits are of different units.
struct VisitRange {
  int unit = -1;
  InstructionId begin = 0, last = 0;  // First and last instruction that works for the unit.
};

// Returns the visits of a program in order. Instructions of the gather stream do not count, because they may work ahead
// (OverlapCollectives), nor do those of no unit.
std::vector<VisitRange> VisitsOf(const StepProgram& program);

// Returns, by buffer, whether an instruction of the loop writes it.
std::vector<bool> WrittenIn(const StepProgram& program, const Loop& loop);

// Returns a copy of all of a tensor to or from host memory, with everything but the action and the stream as in `like`.
Instruction CopyInstruction(const Instruction& like, const Tensor& device, const Tensor& host, bool to_host);

}  // namespace shale
