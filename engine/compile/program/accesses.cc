#include "engine/compile/program/accesses.h"

namespace shale {

std::vector<OperandBytes> OperandsOf(const Instruction& instruction, bool first_iteration) {
  const Op* op = std::get_if<Op>(&instruction.action);
  const std::vector<ElementRange>* ranges = op == nullptr ? nullptr : WrittenRanges(*op);
  std::vector<OperandBytes> operands;
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
  return operands;
}

}  // namespace shale
