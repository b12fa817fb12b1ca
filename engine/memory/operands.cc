#include "engine/memory/operands.h"

namespace shale {

std::vector<OperandBytes> OperandsOf(const Instruction& instruction, bool first_pass) {
  const Op* op = std::get_if<Op>(&instruction.action);
  const ZeroRanges* zeroes = op == nullptr ? nullptr : std::get_if<ZeroRanges>(op);
  std::vector<OperandBytes> operands;
  VisitInstruction(instruction, first_pass, [&](absl::string_view, const Tensor& t, Access access) {
    const Location& where = t.where;
    operands.push_back({.buffer = where.symbol,
                        .bytes = {where.offset_bytes, where.offset_bytes + t.extent_bytes()},
                        .reads = access != Access::kWrite,
                        .writes = access != Access::kRead,
                        .by_rank = where.rank_stride_bytes != 0,
                        .zeroes = zeroes != nullptr && &t == &zeroes->x_N ? zeroes : nullptr});
  });
  return operands;
}

}  // namespace shale
