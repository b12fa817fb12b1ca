// Compiles a model and its options into the program of one step.
#pragma once

#include "absl/status/statusor.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/state.h"
#include "kernels/op_backend.h"

namespace shale {

// A compiled program, and where the state of the job lies in its buffers. The program has no waits yet: DeriveWaits
// (engine/compile/memory/plan.h) adds them after planning.
struct CompiledStep {
  StepProgram program;
  JobState state;
};

// Compiles the program for the graph's mode. kTraining: the entire optimizer step. kEvaluation: the loss of
// `micro_batches` micro-batches. kLogits: the logits of one micro-batch. All programs of a job must be compiled with
// the same options, except for micro_batches, so that they have the same persistent buffers. Launches no op: `ops` only
// says what ops need, and which it has kernels for.
//
// Returns the errors of CheckStepOptions, such as InvalidArgument if the accumulation does not exist for the strategy;
// InvalidArgument if a checkpoint could not hold weights of two dtypes, or if a group has no valid layout;
// Unimplemented if the device has no kernel for an op; and the error of `limits`, which it looks at unit by unit, if
// the work must end. REQUIRES: options.accumulation is not kAuto, and options.micro_batches and both sizes of the mesh
// are at least 1.
absl::StatusOr<CompiledStep> CompileStep(const ModelGraph& model, const StepOptions& options, const Ops& ops,
                                         const WorkLimits& limits = {});

// Compiles the program that copies the tensors that a checkpoint saves (GroupState::saved) to the buffers in which they
// stay unchanged while the next steps run (GroupState::snapshot). REQUIRES: options.snapshot.
absl::StatusOr<CompiledStep> CompileSnapshot(const ModelGraph& model, const StepOptions& options, const Ops& ops);

}  // namespace shale
