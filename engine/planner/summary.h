// What a step program moves and computes, counted from its instructions.
#pragma once

#include <cstdint>

#include "engine/config/job.h"
#include "engine/graph/graph.h"
#include "engine/program/program.h"

namespace shale {

// The collectives that one rank takes part in during one step. Bytes are those of the full vectors, of which a rank
// holds 1 / W. Counts and bytes stop at the largest int64.
struct CommunicationSummary {
  int64_t gathers = 0, reductions = 0, all_reduces = 0;  // The two all-reduces of scalars included.
  int64_t gathered_bytes = 0, reduced_bytes = 0, all_reduced_bytes = 0;
  // What one rank sends in a ring: (W - 1) / W of gathered and reduced bytes, twice that of all-reduced ones.
  int64_t sent_bytes = 0;
};
CommunicationSummary SummarizeCommunication(const StepProgram& program, int64_t ranks);

// What one rank moves to host memory and back in one step. Bytes stop at the largest int64.
struct OffloadSummary {
  int64_t tensors = 0;  // Of one micro-batch.
  int64_t offloaded_bytes = 0, fetched_bytes = 0;
};
OffloadSummary SummarizeOffload(const StepProgram& program);

// Floating point operations of one rank in one step, by phase. The gradients of the loss and the head, which are
// computed in the same iteration as the loss, are backward.
struct FlopsSummary {
  double forward = 0, recompute = 0, backward = 0;
  double total() const { return forward + recompute + backward; }
};
FlopsSummary SummarizeFlops(const StepProgram& program);

// Largest sums of live buffers of the arena, inside and outside the optimizer update.
struct UpdateMemory {
  int64_t update_bytes = 0;
  int64_t elsewhere_bytes = 0;
};
UpdateMemory MeasureUpdate(const StepProgram& program);

// Floating point operations that a model needs for one target token, forward and backward, as MFU counts them: 6 x
// parameters (embedding tables that are only looked up excluded, the head included) + 6 x layers x attention width x
// sequence (causal: half of all pairs; a window shortens it). What is computed again does not count. `graph` is the
// job's training graph.
double ModelFlopsPerToken(const Job& job, const ModelGraph& graph);

// Parameters of the model, in elements, without padding.
int64_t CountParameters(const ModelGraph& graph);

}  // namespace shale
