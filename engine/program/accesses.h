// The bytes of buffers that instructions access, for lifetimes and waits. The check after planning (memory/check.h)
// does not use this file, so that a mistake here cannot hide itself.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/range_set.h"

namespace shale {

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

// Returns the operands of an instruction in the form that the first iteration of its loop issues, or in the form of all
// later iterations. The returned pointers are valid as long as the instruction.
std::vector<OperandBytes> OperandsOf(const Instruction& instruction, bool first_iteration);

}  // namespace shale
