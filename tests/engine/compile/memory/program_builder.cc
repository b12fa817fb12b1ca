#include "tests/engine/compile/memory/program_builder.h"

#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/scalars.h"

namespace shale::testing {

Instruction& ProgramBuilder::Touch(StreamId stream, std::vector<Tensor> reads, std::vector<Tensor> writes,
                                   std::vector<Tensor> updates) {
  SHALE_CHECK(updates.size() <= 1 && reads.size() <= (updates.empty() ? 4 : 3) &&
              writes.size() <= (updates.empty() ? 4 : 1));
  reads.resize(4);
  writes.resize(4);
  if (updates.empty()) {
    return Add(stream, Op(LayerNormForward{.x = reads[0],
                                           .residual = reads[1],
                                           .weight_C = reads[2],
                                           .bias_C = reads[3],
                                           .sum = writes[0],
                                           .y = writes[1],
                                           .mean_R = writes[2],
                                           .rstd_R = writes[3]}));
  }
  return Add(stream, Op(PrepareUpdate{.hyper_2 = reads[0],
                                      .valid_tokens_1 = reads[1],
                                      .totals_3 = reads[2],
                                      .update_count_1 = updates[0],
                                      .update_5 = writes[0]}));
}

Instruction& ProgramBuilder::AccumulateAfterFirst(StreamId stream, Tensor x, Tensor total) {
  Instruction& instruction = Add(stream, Op(Accumulate{.x_N = x, .total_N = total, .accumulate = true}));
  instruction.first_iteration_differs = true;
  return instruction;
}

Instruction& ProgramBuilder::PackInFirst(StreamId stream, Tensor x, Tensor packed, Tensor c) {
  Instruction& instruction = Add(stream, Op(MatMul{.a = x, .c_MN = c, .packed_b = packed, .b_is_packed = true}));
  instruction.first_iteration_differs = true;
  return instruction;
}

}  // namespace shale::testing
