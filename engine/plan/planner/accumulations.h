// The accumulations of a job that leaves its own open, and the order in which they are compiled.
#pragma once

#include <vector>

#include "engine/compile/graph/graph.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/step/options.h"
#include "kernels/dtype.h"

namespace shale {

// Returns the values of sharding.accumulation, among which AUTO chooses by their cost. NO_SYNC is not one of them if
// gradients are summed in bf16, which it refuses (CheckGradientShards).
std::vector<Accumulation> AccumulationsFor(DType gradient_shards);

// The accumulations that a job with AUTO may take, in such an order that the first that fits is the best of them: it
// sends least, and of those that send the same it needs the least memory. Empty if that order is not known before they
// are compiled.
//
// Where no gradients are sharded, all sum full gradients and reduce them once, and LAYERED keeps what backward needs of
// all micro-batches. Otherwise LAYERED sends least, because it gathers and reduces once a step, and SHARDED most. With
// four micro-batches this is so even though LAYERED, as SHARDED, reduces a tied embedding twice. With one micro-batch,
// all send the same but for that.
struct AccumulationOrder {
  std::vector<Accumulation> all;
  bool is_near = false;  // A later one that fits may still need a little less memory than the first.
};
AccumulationOrder OrderOf(const StepOptions& options, const ModelGraph& graph);

// What a sketch of a job with AUTO compiles.
struct ToCompile {
  std::vector<Accumulation> order;  // AccumulationOrder::all, but LAYERED last if it certainly does not fit.
  double layered_misses = 0;        // By how many bytes LAYERED exceeds the budget at least.
};
ToCompile InOrder(const StepOptions& options, const ModelGraph& graph, const Budget& budget);

}  // namespace shale
