// A step of two ranks, one of which is late: its program, and its times.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/program/program.h"
#include "engine/run/runtime/executor.h"
#include "kernels/ops/flat.h"
#include "sharding/mesh.h"

namespace shale::testing {

// Two copies and a collective.
inline StepProgram SmallProgram() {
  const auto numbers = [](int64_t elements) {
    Tensor t = Tensor::Contiguous(DType::kFloat32, {elements});
    t.where.symbol = 0;
    return t;
  };
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 4000}};
  program.instructions = {
      {.action = Op(Copy{numbers(10), numbers(10)})},
      {.action = Op(Copy{numbers(10), numbers(10)})},
      {.action = Collective{.kind = CollectiveKind::kAllReduceSum, .full = numbers(8)}, .stream = StreamId::kReduce}};
  program.loops = {{0, 3, 1}};
  return program;
}
inline constexpr Mesh kTwoRanks = {.replicate = 1, .shard = 2};

// Rank 1 comes 300 ns late to the collective, which then takes 100 ns.
inline const std::vector<InstructionTime> kEarly = {{.id = 0, .begin_ns = 0, .end_ns = 100},
                                                    {.id = 1, .begin_ns = 110, .end_ns = 310},
                                                    {.id = 2, .begin_ns = 400, .end_ns = 800}};
inline const std::vector<InstructionTime> kLate = {{.id = 0, .begin_ns = 0, .end_ns = 300},
                                                   {.id = 1, .begin_ns = 330, .end_ns = 730},
                                                   {.id = 2, .begin_ns = 700, .end_ns = 800}};

}  // namespace shale::testing
