// Counts, from the instructions of a step program, what it communicates, offloads and computes. Also says what a model
// predicts, and which optimizers a job uses.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compile/graph/graph.h"
#include "engine/compile/program/program.h"
#include "engine/compile/step/state.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/variant.h"
#include "sharding/mesh.h"

namespace shale {

// The collectives that one rank takes part in during one step. Bytes are those of the full vectors; in a group of N
// ranks, a shard has 1 / N of them. Counts and bytes stop at the largest int64.
struct CommunicationSummary {
  int64_t gathers = 0, reductions = 0, all_reduces = 0;  // Including those of scalars.
  int64_t gathered_bytes = 0, reduced_bytes = 0, all_reduced_bytes = 0;
  // Bytes that one rank sends if collectives go around rings: in a group of N ranks, (N - 1) / N of the bytes gathered
  // and reduced, and twice that share of the bytes all-reduced.
  int64_t sent_bytes = 0;
  int64_t sent_between_groups_bytes = 0;  // The part of sent_bytes for collectives across rows of the mesh.
};
CommunicationSummary SummarizeCommunication(const StepProgram& program, const Mesh& mesh);

// The bytes that one rank moves to host memory and back in one step. They stop at the largest int64.
struct OffloadSummary {
  int64_t tensors = 0;  // Activations of one micro-batch that are offloaded.
  int64_t offloaded_bytes = 0, fetched_bytes = 0;
  // What a step moves of the state that lies in host memory: to the arena for its uses, and back after updates.
  int64_t state_fetched_bytes = 0, state_returned_bytes = 0;
  int64_t gradient_bytes = 0;  // Gradients that are copied to host memory for an update there.
};
// Returns whether a buffer is an offloaded activation in host memory.
bool IsOffloadedActivation(const Buffer& buffer);
OffloadSummary SummarizeOffload(const StepProgram& program);

// Returns what the program computes (Cost::flops).
FlopsSummary SummarizeFlops(const StepProgram& program);

// The largest number of live bytes in the arena, inside and outside the optimizer update.
struct UpdateMemory {
  int64_t update_bytes = 0;
  int64_t elsewhere_bytes = 0;
};
UpdateMemory MeasureUpdate(const StepProgram& program);

// Returns the largest number of bytes of activations that are live in the arena at once: what is kept from forward to
// backward, and the inputs and outputs of units with their gradients.
int64_t MeasureActivations(const StepProgram& program);

// Returns the bytes of gradients that one rank all-reduces in a step, without the scalars. They stop at the largest
// int64.
int64_t AllReducedGradientBytes(const StepProgram& program);

// Returns whether a model predicts values (MeanSquaredError), so that it has no logits.
bool PredictsValues(const ModelGraph& graph);

// Returns the floating point operations that a model needs for one target token, forward and backward, as MFU counts
// them: 6 x parameters (without embedding tables that are only looked up, with the head) + 6 x layers x attention width
// x sequence length (the causal attention of decoders needs half of all pairs; a window shortens it). Recomputation
// does not count. `graph` is the job's training graph. Of a custom model, and with frozen parameters, counts the
// matmuls and the attention that are in the graph.
double ModelFlopsPerToken(const Job& job, const ModelGraph& graph);
// Returns the part of these operations that multiplies fp8 matrices (precision.matmuls FP8).
double Float8FlopsPerToken(const ModelGraph& graph);
// Returns the part of these operations that attention takes for all tokens of a document of `length` tokens, which see
// one another and no others. Of a document as long as a sequence, ModelFlopsPerToken counts exactly that.
double DocumentAttentionFlops(const Job& job, const ModelGraph& graph, int64_t length);

// An optimizer that updates at least one parameter: StepOptions::OptimizerOf(group), Of(!others).
struct OptimizerInUse {
  int group = -1;
  bool others = false;  // Whether it updates what are no matrices of blocks.
  const Optimizer& In(const StepOptions& options) const { return options.OptimizerOf(group).Of(!others); }
  auto operator<=>(const OptimizerInUse&) const = default;
};
// Returns them by their group, ascending.
std::vector<OptimizerInUse> OptimizersInUse(const JobState& state);

// Return the number of parameters of the model, in elements, without padding: of all, and of those that train.
int64_t CountParameters(const ModelGraph& graph);
int64_t CountTrainedParameters(const ModelGraph& graph);

}  // namespace shale
