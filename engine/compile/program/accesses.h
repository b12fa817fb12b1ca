// The operands of an instruction, and the bytes of buffers that instructions access.
//
// All code that needs to know what an instruction reads or writes, or that changes its operands, uses the visitors
// below, the check after planning (engine/compile/memory/plan.h) too. That check finds the bytes of operands itself,
// without GetOperands, so that a mistake there cannot hide itself.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/program/program.h"
#include "kernels/element_range.h"
#include "kernels/op.h"

namespace shale {

namespace internal {

template <class SomeAction, class Visitor>
void VisitAction(SomeAction& action, Visitor&& visitor) {
  if (auto* op = std::get_if<Op>(&action)) {
    VisitOperands(*op, visitor);
  } else if (auto* collective = std::get_if<Collective>(&action)) {
    const bool scatter =
        collective->kind == CollectiveKind::kReduceScatterSum || collective->kind == CollectiveKind::kAllToAll;
    visitor("local", collective->local, scatter ? Access::kWrite : Access::kRead);
    visitor("full", collective->full,
            scatter ? Access::kRead
                    : (collective->kind == CollectiveKind::kAllGather ? Access::kWrite : Access::kReadWrite));
  } else if (auto* transfer = std::get_if<Transfer>(&action)) {
    visitor("device", transfer->device, transfer->to_host ? Access::kRead : Access::kWrite);
    visitor("host", transfer->host, transfer->to_host ? Access::kWrite : Access::kRead);
  } else {
    auto& copy = std::get<StepItemCopy>(action);
    visitor(ToString(copy.item), copy.device, ToHost(copy.item) ? Access::kRead : Access::kWrite);
  }
}

}  // namespace internal

// Calls visitor(name, const Tensor&, access) for every present operand of an instruction, in the form that the first
// iteration of its loop issues or in the form of all later iterations. Scratch counts as an operand that is written.
template <class Visitor>
void VisitInstruction(const Instruction& instruction, bool first_iteration, Visitor&& visitor) {
  const auto present = [&](absl::string_view name, const Tensor& t, Access access) {
    if (t.present()) visitor(name, t, access);
  };
  if (first_iteration && instruction.first_iteration_differs) {
    Op first = std::get<Op>(instruction.action);
    MakeFirst(first);
    VisitOperands(std::as_const(first), present);
  } else {
    internal::VisitAction(instruction.action, present);
  }
  present("scratch", instruction.scratch, Access::kWrite);
}

// Calls visitor(Tensor&) for every present operand of an instruction, scratch included. The visitor may change them.
template <class Visitor>
void ChangeOperands(Instruction& instruction, Visitor&& visitor) {
  internal::VisitAction(instruction.action, [&](absl::string_view, Tensor& t, Access) {
    if (t.present()) visitor(t);
  });
  if (instruction.scratch.present()) visitor(instruction.scratch);
}

// Moves every operand of an instruction that lies in buffer `from` to the same place in buffer `to`.
inline void RenameBuffer(Instruction& instruction, BufferId from, BufferId to) {
  ChangeOperands(instruction, [&](Tensor& t) {
    if (t.where.symbol == from) t.where.symbol = to;
  });
}

// The bytes that one operand accesses. `bytes` are relative to its slot, at the place that rank 0 uses. For a strided
// tensor they include the gaps.
struct OperandBytes {
  BufferId buffer = -1;
  ByteRange bytes;
  bool reads = false;
  bool writes = false;
  bool by_rank = false;  // Each rank accesses different bytes.
  // Set if the op writes only these elements and reads none (see WrittenRanges), although `reads` is set. Each element
  // has `element_bytes` bytes.
  const std::vector<ElementRange>* ranges = nullptr;
  int64_t element_bytes = 0;
};

// Sets `operands` to those of an instruction, in the form that the first iteration of its loop issues or in the form of
// all later iterations. Their pointers are valid as long as the instruction. Takes a vector so that a caller can use
// the same one for all instructions of a program.
inline void GetOperands(const Instruction& instruction, bool first_iteration, std::vector<OperandBytes>& operands) {
  const Op* op = std::get_if<Op>(&instruction.action);
  const std::vector<ElementRange>* ranges = op == nullptr ? nullptr : WrittenRanges(*op);
  operands.clear();
  VisitInstruction(instruction, first_iteration, [&](absl::string_view, const Tensor& t, Access access) {
    const Location& where = t.where;
    operands.push_back({.buffer = where.symbol,
                        .bytes = {where.offset_bytes, where.offset_bytes + t.extent_bytes()},
                        .reads = access != Access::kWrite,
                        .writes = access != Access::kRead,
                        .by_rank = where.shard_stride_bytes != 0,
                        .ranges = access == Access::kReadWrite ? ranges : nullptr,
                        .element_bytes = SizeOf(t.dtype)});
  });
}

}  // namespace shale
