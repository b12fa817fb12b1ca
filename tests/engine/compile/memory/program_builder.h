// Builds small programs by hand. Their instructions access given bytes, without computing anything meaningful.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/compile/program/program.h"
#include "kernels/check.h"
#include "kernels/tensor.h"

namespace shale::testing {

using enum StreamId;  // Tests name the streams of many instructions.

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
                     std::vector<Tensor> updates = {});
  // Adds an instruction that computes total = x in the first iteration of its loop and total += x in the others.
  Instruction& AccumulateAfterFirst(StreamId stream, Tensor x, Tensor total);
  // Adds an instruction that writes c. In the first iteration of its loop it also writes `packed`, which the other
  // iterations read.
  Instruction& PackInFirst(StreamId stream, Tensor x, Tensor packed, Tensor c);
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
