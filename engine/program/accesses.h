// The bytes of buffers that instructions access, for lifetimes and waits. The check after planning (memory/check.h)
// reads the program by itself, so that a mistake here does not hide itself.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/range_set.h"

namespace shale {

// One operand. `bytes` lie in its slot, as rank 0 addresses it; a strided tensor counts with its gaps.
struct OperandBytes {
  BufferId buffer = -1;
  ByteRange bytes;
  bool reads = false;
  bool writes = false;
  bool by_rank = false;  // Other ranks access other bytes.
  // Set if the op writes these elements alone and reads none (see WrittenRanges); bytes of each element.
  const std::vector<ElementRange>* ranges = nullptr;
  int64_t element_bytes = 0;
};

// Returns the operands of an instruction as the first iteration of its loop issues it, or as all later iterations do.
// The pointers in it are valid as long as the instruction.
std::vector<OperandBytes> OperandsOf(const Instruction& instruction, bool first_iteration);

}  // namespace shale
