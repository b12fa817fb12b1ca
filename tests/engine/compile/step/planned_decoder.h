// The step of a small decoder, compiled, planned and checked.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/compile/memory/plan.h"
#include "engine/compile/model/model.h"
#include "engine/compile/step/compile.h"
#include "kernels/reference/reference_ops.h"

namespace shale::testing {

struct Planned {
  StepProgram program;
  MemoryPlan plan;
};

// Compiles, plans and checks a step of a small decoder. `sizes` tells the sizes of scratch and packed weights; if it is
// null, the reference ops do.
inline Planned PlanDecoder(const StepOptions& options, int64_t layers, GraphMode mode = GraphMode::kTraining,
                           Activation activation = Activation::kSwiGlu, const Ops* sizes = nullptr) {
  DecoderConfig c;
  c.vocabulary = 11;
  c.width = 8;
  c.layers = layers;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_width = 4;
  c.hidden = 12;
  c.activation = activation;
  const absl::StatusOr<ModelGraph> graph =
      BuildDecoder(c, {.mode = mode, .micro_batch = 2, .sequence_length = 64, .loss_chunk_tokens = 16});
  EXPECT_TRUE(graph.ok()) << graph.status();
  const std::unique_ptr<Ops> reference = CreateReferenceOps();
  absl::StatusOr<CompiledStep> step = CompileStep(*graph, options, sizes != nullptr ? *sizes : *reference);
  EXPECT_TRUE(step.ok()) << step.status();
  Planned planned{std::move(step->program)};
  const absl::StatusOr<MemoryPlan> plan = PlanMemory(planned.program, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  planned.plan = *plan;
  DeriveWaits(planned.program, planned.plan);
  const absl::Status proved = CheckProgram(planned.program, planned.plan);
  EXPECT_TRUE(proved.ok()) << proved;
  return planned;
}

}  // namespace shale::testing
