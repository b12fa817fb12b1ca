// Builds small programs by hand. Their instructions access given bytes, without computing anything meaningful.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/program/program.h"
#include "kernels/check.h"
#include "kernels/ops.h"

namespace shale::testing {

class ProgramBuilder {
 public:
  BufferId AddBuffer(std::string name, int64_t slot_bytes, int64_t slots = 1, bool persistent = false) {
    program_.buffers.push_back({.name = std::move(name),
                                .category = persistent ? BufferCategory::kOptimizerState : BufferCategory::kWorkspace,
                                .slot_bytes = slot_bytes,
                                .slots = slots,
                                .persistent = persistent});
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }
  BufferId AddHostBuffer(std::string name, int64_t bytes, int64_t slots = 1) {
    const BufferId id = AddBuffer(std::move(name), bytes, slots);
    program_.buffers[id].memory = MemoryKind::kHost;
    return id;
  }
  BufferId AddPersistent(std::string name, int64_t bytes) { return AddBuffer(std::move(name), bytes, 1, true); }

  // Returns bytes [begin, begin + count) of a buffer's slot; both must be even. count = -1: all bytes from `begin` on.
  Tensor Bytes(BufferId buffer, int64_t begin = 0, int64_t count = -1) const {
    if (count < 0) count = program_.buffers[buffer].slot_bytes - begin;
    SHALE_CHECK(begin % 2 == 0 && count % 2 == 0);
    Tensor t = Tensor::Contiguous(DType::kInt16, {count / 2});
    t.where = {.symbol = buffer, .offset_bytes = begin};
    return t;
  }

  // Adds an instruction with at most 4 reads and 4 writes, or, if it has an update, at most 3 reads and 1 write.
  Instruction& Touch(StreamId stream, std::vector<Tensor> reads, std::vector<Tensor> writes,
                     std::vector<Tensor> updates = {}) {
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

  // Adds an instruction that computes total = x in the first iteration of its loop and total += x in the others.
  Instruction& AccumulateAfterFirst(StreamId stream, Tensor x, Tensor total) {
    Instruction& instruction = Add(stream, Op(Accumulate{.x_N = x, .total_N = total, .accumulate = true}));
    instruction.first_iteration_differs = true;
    return instruction;
  }

  // Adds an instruction that writes c. In the first iteration of its loop it also writes `packed`, which the other
  // iterations read.
  Instruction& PackInFirst(StreamId stream, Tensor x, Tensor packed, Tensor c) {
    Instruction& instruction = Add(stream, Op(MatMul{.a = x, .c_MN = c, .packed_b = packed, .b_is_packed = true}));
    instruction.first_iteration_differs = true;
    return instruction;
  }

  Instruction& Add(StreamId stream, Action action) {
    program_.instructions.push_back({.action = std::move(action), .stream = stream, .micro_batch = micro_batch_});
    return program_.instructions.back();
  }

  // End the previous loop. The instructions that follow run once, for the step, or `repeat` times, as a loop over
  // micro-batches.
  void Once() { Begin(1, -1); }
  void Loop(int64_t repeat) { Begin(repeat, 0); }

  InstructionId next() const { return static_cast<InstructionId>(program_.instructions.size()); }
  StepProgram& program() { return program_; }
  StepProgram Finish() {
    Begin(1, -1);
    return program_;
  }

 private:
  void Begin(int64_t repeat, int32_t micro_batch) {
    const InstructionId begin = program_.loops.empty() ? 0 : program_.loops.back().end;
    if (begin < next()) program_.loops.push_back({begin, next(), repeat_});
    repeat_ = repeat;
    micro_batch_ = micro_batch;
  }
  StepProgram program_;
  int64_t repeat_ = 1;
  int32_t micro_batch_ = -1;
};

}  // namespace shale::testing
