// Compiles a model and its options into the program of one step.
#pragma once

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/program/program.h"
#include "engine/step/options.h"
#include "engine/step/state.h"

namespace shale {

// A program without waits (see memory/waits.h), and where the persistent state lies in its buffers.
struct CompiledStep {
  StepProgram program;
  JobState state;
};

// By the graph's mode: kTraining, the whole optimizer step; kEvaluation, the loss of `micro_batches` micro-batches;
// kLogits, the logits of one micro-batch. All programs of a job must be compiled with the same options, micro_batches
// apart: then their persistent buffers are the same. `ops` is asked for sizes only.
// InvalidArgument for a pair of strategy and accumulation that does not exist.
absl::StatusOr<CompiledStep> CompileStep(const ModelGraph& model, const StepOptions& options, const Ops& ops);

// The program that copies what a checkpoint saves (GroupState::saved) to where it stays while the next steps run
// (GroupState::snapshot). REQUIRES: options.snapshot.
absl::StatusOr<CompiledStep> CompileSnapshot(const ModelGraph& model, const StepOptions& options, const Ops& ops);

}  // namespace shale
