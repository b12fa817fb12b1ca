// What instructions touch, in bytes of buffers: for lifetimes and waits. The check after planning (check.h) reads the
// program by itself, so that a mistake here does not hide itself.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/memory/range_set.h"
#include "engine/step/program.h"

namespace shale {

// One operand. `bytes` are those of its slot, as rank 0 addresses it; a strided tensor counts with its gaps.
struct OperandBytes {
  BufferId buffer = -1;
  ByteRange bytes;
  bool reads = false;
  bool writes = false;
  bool by_rank = false;  // Other ranks touch other bytes.
  // Set for the op that zeroes gaps: it writes those alone and needs nothing that was there.
  const ZeroRanges* zeroes = nullptr;
};

// The operands of an instruction as of the first pass of its section, or of every other one. The pointers are valid as
// long as the instruction.
std::vector<OperandBytes> OperandsOf(const Instruction& instruction, bool first_pass);

}  // namespace shale
