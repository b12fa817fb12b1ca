// PassTest: builds programs of visits and updates by hand, as the compiler emits them, for tests of passes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/program/program.h"
#include "kernels/op_backend.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {

// Needs so many bytes of scratch for a Copy, is fastest with four times as many, and packs every b.
class PassOps : public Ops {
 public:
  explicit PassOps(int64_t copy_bytes, const Ops* host = nullptr) : copy_bytes_(copy_bytes), host_(host) {}
  int64_t ScratchBytes(const Op& op) const override { return op.Is<Copy>() ? copy_bytes_ : 0; }
  int64_t AmpleScratchBytes(const Op& op, int64_t most_bytes) const override {
    const int64_t least = ScratchBytes(op);
    return std::max(least, std::min(4 * least, most_bytes));
  }
  int64_t PackedBytes(const MatMul&) const override { return 64; }
  const Ops* host() const override { return host_; }

 protected:
  absl::Status Enqueue(const Op&, Scratch, Stream&) override { return absl::UnimplementedError("not to be run"); }

 private:
  const int64_t copy_bytes_;
  const Ops* const host_;
};

// Builds programs of visits and updates as the compiler emits them.
class PassTest : public ::testing::Test {
 protected:
  Tensor Vector(BufferId buffer, DType dtype = DType::kFloat32, int64_t elements = 8) {
    Tensor t = Tensor::Contiguous(dtype, {elements});
    t.where.symbol = buffer;
    return t;
  }
  void Visit(int unit, std::vector<Tensor> reads, std::vector<Tensor> writes, Phase phase = Phase::kForward) {
    Instruction& instruction = builder_.Touch(kCompute, std::move(reads), std::move(writes));
    instruction.unit = unit;
    instruction.phase = phase;
  }
  void Gather(int unit, BufferId shard, BufferId full) {
    Instruction& gather = builder_.Add(kGather, Collective{.kind = CollectiveKind::kAllGather,
                                                           .local = Vector(shard),
                                                           .full = Vector(full, DType::kFloat32, 16)});
    gather.unit = unit;
  }
  BufferId Full(const std::string& name) { return builder_.AddBuffer(name, 64); }
  // Adds the state of a group, in which `moment` may lie in host memory, and its gradient.
  struct Group {
    BufferId weight, moment, gradient;
  };
  Group AddGroup(const std::string& name, MemoryKind memory) {
    const Group group{builder_.AddPersistent(name + ".w", 32), builder_.AddPersistent(name + ".m", 32),
                      builder_.AddBuffer(name + ".g", 32)};
    builder_.program().buffers[group.moment].memory = memory;
    return group;
  }
  // Returns the totals of a group, or of all.
  Tensor Row(BufferId totals, int64_t row = 0) {
    Tensor t = Vector(totals, DType::kFloat64, 3);
    t.where.offset_bytes = row * t.extent_bytes();
    return t;
  }
  // Adds the PrepareUpdate of a group, and its update.
  void UpdateGroup(int32_t number, const Group& group, const Tensor& totals) {
    const BufferId update = builder_.AddBuffer("update", 20);
    builder_.Add(kCompute, Op(PrepareUpdate{.totals_3 = totals, .update_5 = Vector(update, DType::kFloat32, 5)}));
    Op op = Update{.update_5 = Vector(update, DType::kFloat32, 5),
                   .gradient_P = Vector(group.gradient),
                   .weight_P = Vector(group.weight),
                   .rule = LionRule{},
                   .group = number};
    op.As<Update>()->states[0] = Vector(group.moment);
    builder_.Add(kCompute, std::move(op));
    for (InstructionId id = builder_.next() - 2; id < builder_.next(); ++id) {
      builder_.program().instructions[id].phase = Phase::kUpdate;
    }
  }
  void Norm(const Group& group, const Tensor& totals) {
    builder_.Add(kCompute, Op(SumSquares{.x_N = Vector(group.gradient), .total_1 = totals.Slice(0, 0, 1)})).phase =
        Phase::kUpdate;
  }

  ProgramBuilder builder_;
};

}  // namespace shale::testing
