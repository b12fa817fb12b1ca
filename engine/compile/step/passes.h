// Passes: functions that change a compiled program. The compiler emits gathers, forward, backward, reductions and
// updates one after another (engine/compile/step/compile.cc), as if all state lay in the arena and everything ran when
// it is needed. Passes make of this what the options of the job ask for. No pass changes results.
//
// RunPasses has the one list of passes, in their order, and says why each stands where it stands. Below, each pass says
// what it does, what it assumes ("REQUIRES") and what it keeps. To add one: declare it here, add it to the list
// (passes.cc), and test it on a program built by hand (tests/engine/compile/step/passes_test.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/state.h"
#include "kernels/op_backend.h"

namespace shale {

// Runs the passes that the options ask for. Launches no op: `ops` only says what ops need, and which it has kernels
// for. Returns Unimplemented if it has none for an op (AddScratch), and the error of `limits`, which it looks at
// between passes, if the work must end. `program` is then incomplete.
absl::Status RunPasses(const StepOptions& options, const JobState& state, const Ops& ops, const WorkLimits& limits,
                       StepProgram& program);

// Lets weights that multiply in fp8 travel in fp8, so that a rank receives one byte for each and quantizes only its
// shard, once a step ([Note: fp8 matmuls] in engine/compile/graph/graph.h):
//
//   compute   maxima of each shard               quantize each shard    matmuls read gathered codes ...
//   gather                           all maxima                         codes of a unit, codes of the next ...
//
// The scale of a weight follows its largest magnitude on all ranks, so one all-gather brings the maxima of all weights
// together when the step begins. The ops that made a weight's fp8 form are taken out. Where they also made its
// transposed form, an op transposes the gathered codes.
//
// Changes the all-gathers of a flat group only if every op that reads its gathered weights quantizes a whole parameter,
// to e4m3. Leaves groups alone that are not gathered, lie in host memory, or are stored in another form. Keeps the
// order of all other instructions. REQUIRES: the first loop runs once, and no instruction changes the weights of a
// group before its last all-gather.
void GatherFloat8(StepProgram& program, const JobState& state);

// Lets collectives run while units compute. A visit is what the compute stream runs for one unit without interruption
// (engine/compile/step/visits.h). Moves the all-gathers of a visit to the beginning of the visit that is `prefetch`
// visits earlier, so that the gather stream works up to `prefetch` visits ahead of the compute stream. A gathered
// buffer lives from its all-gather to its last use, so `prefetch` also decides how many gathered units exist at once.
// The gradient that a reduction reads is held while the next visit runs (Buffer::held_until), so that this visit need
// not wait for the reduction.
//
// Keeps the order of all instructions of each stream. REQUIRES: the instructions of a visit are adjacent; only
// instructions that belong to no unit may stand between them.
void OverlapCollectives(StepProgram& program, int64_t prefetch);

// Moves the updates to the host. `host_weights`, by GroupId, are the weights in host memory that they read and write.
//
// [Note: update on the host] With UpdateDevice::kHost, masters, moments and a copy of the weights stay in host memory.
// Only gradients go there and only weights come back, on the copy stream. The update runs on StreamId::kHost:
//
//   copy   gradient 0, gradient 1     gradient 2, weight 0   gradient 3, weight 1   ...
//   host                   update 0   update 1               update 2               ...
//
// So the gradient of the next group and the weights of the group before move while a group is updated, and host memory
// holds the gradients of two groups. Norms, clipping and the decision to skip are computed on the device, and update 0
// is preceded by a copy of a few scalars, on the host stream. A skipped update leaves the weights in host memory as
// they are, and their copy back changes nothing.
//
// With IN_BACKWARD the gradient of a group goes to the host before the backward of the next unit, or on one rank right
// after its own backward, and the weights of a group come back after the next unit's backward. A gradient keeps its
// bytes in the arena for that long, so that no backward has to wait for the copy.
//
// Keeps the order of updates, and all instructions that compute norms. An all-gather right after an update moves with
// the copy that brings the weights back, and follows it. REQUIRES:
// - The program has an update, and none of a composed optimizer.
// - A Copy that widens a gradient stands right before its update, and an all-gather of its weights right after it.
// - A PrepareUpdate stands before the updates that read it: right before the first of them if each group has totals of
//   its own (an update in backward, or another Clipping than kGlobal), else before the first update of the program.
// - The last loop has no visits.
void UpdateOnHost(StepProgram& program, absl::Span<const Tensor> host_weights);

// Copies state that lies in host memory into the arena for its use, and back if it was changed.
//
// [Note: state in host memory] StepOptions::offload_state keeps tensors of the groups in host memory. For the update of
// a group its tensors are copied into the arena, and back after it, on the copy stream. The next group is copied in
// while this one is updated, so the arena holds the tensors of at most two groups. With AFTER_BACKWARD:
//
//   copy       in 0, in 1            out 0, in 2   out 1, in 3   ...
//   compute    norms ..... update 0  update 1      update 2      ...
//
// With IN_BACKWARD a group is copied in before the backward that precedes its update. Weights in host memory are copied
// in before each all-gather, one visit ahead of it. On one shard, where nothing is gathered, that copy takes the place
// of the all-gather.
//
// Keeps all instructions and their order, and leaves those of StreamId::kHost alone: these read host memory. A composed
// optimizer has several instructions before its update, such as the stages of Adafactor (engine/compile/step/update.h).
// REQUIRES:
// - On streams other than kHost, only updates, the instructions of composed optimizers before them, and the all-gathers
//   of visits have operands in host memory.
// - The instructions of a composed optimizer for a group stand right before its update. Each writes what a later one of
//   them, or the update, reads. None is a Copy. A Copy and the PrepareUpdate stand before these.
// - A PrepareUpdate stands where UpdateOnHost requires it, and the last loop has no visits.
void OffloadState(StepProgram& program);

// Quantizes a weight once for all iterations of a loop, if the loop does not change the weight. Moves three kinds of
// ops before the loop, one of each for a weight: those that find its maximum, those that write it in fp8 (as it lies,
// and transposed), and those that transpose a weight which was gathered in fp8. Iterations read the results, which are
// what each iteration would have computed. In LAYERED a loop works for one unit, so it quantizes the weights of that
// unit. Otherwise it quantizes the weights of all units that a rank holds whole.
//
// Keeps all other instructions and their order. REQUIRES: there is room for the weights of a loop in fp8, two bytes for
// each element.
//
// Returns the error of `limits`, which it looks at loop by loop, if the work must end. `program` is then incomplete.
absl::Status QuantizeOnce(StepProgram& program, const WorkLimits& limits = {});

// Lets matmuls keep their right operand b packed for all iterations of a loop, if the loop does not change b and the
// device uses packed weights for it (Ops::PackedBytes). The first iteration packs b. Matmuls of a loop with the same b
// share its packed form.
//
// Keeps all instructions and their order. REQUIRES: there is room for the packed form of all such b of a loop at once:
// call it for LAYERED, where a loop is the visit of one unit.
//
// Returns the error of `limits`, which it looks at loop by loop, if the work must end. `program` is then incomplete.
absl::Status PackOnce(StepProgram& program, const Ops& ops, const WorkLimits& limits = {});

// Gives every op the scratch that its library needs in any iteration. Keeps all instructions and their order. REQUIRES:
// `ops.host()` exists if an op runs on StreamId::kHost, and no op has scratch yet.
//
// Returns Unimplemented, naming unit and op, if the device has no kernel for an op (Ops::CheckAvailable), and the error
// of `limits`, which it looks at unit by unit, if the work must end. `program` is then incomplete.
absl::Status AddScratch(StepProgram& program, const Ops& ops, const WorkLimits& limits = {});

// Returns the program with the scratch that makes ops on the device fastest (Ops::AmpleScratchBytes with `most_bytes`),
// or nothing if all ops have that. It is no part of RunPasses, because a plan takes it only where the budget has room.
// Keeps all instructions and their order. REQUIRES: AddScratch has run with these ops.
std::optional<StepProgram> WithAmpleScratch(const StepProgram& program, const Ops& ops, int64_t most_bytes);

// Offloads kept activations and the activations between units, if their names match one of `patterns`
// (engine/strings/pattern.h). After its last use in forward, such a tensor is copied to a host buffer. Before its first
// use in backward, it is copied into a new buffer of the arena. Both copies run on the copy stream. Between them the
// tensor takes no room in the arena.
//
// The buffer that forward writes is held for one more visit, so that no instruction has to wait for the copy. The
// buffer that backward reads is filled one visit ahead. In LAYERED each visit is a loop of its own over the
// micro-batches. There, both buffers keep their bytes until the next loop has begun, so the copy of one micro-batch
// runs beside the work of the next one. The copy out must end before the next micro-batch writes the tensor, and the
// copy back begins when the previous one has read it for the last time. With runtime.graphs copies and work do not
// overlap in this way, because the graph of a micro-batch ends with its copies.
//
// A tensor stays in the arena if its next use is fewer than four visits later (LAYERED: two), because offloading it
// would save nothing, or if backward writes it. A segment of activation checkpointing keeps its input. That is fetched
// for the visit in which the segment's first block runs forward again.
//
// Keeps the order of all instructions. REQUIRES: waits are not derived yet, and CheckStructure accepts the
// program (engine/compile/program/program.h).
//
// Returns the error of `limits`, which it looks at buffer by buffer, if the work must end. `program` is then
// incomplete.
absl::Status OffloadActivations(StepProgram& program, const std::vector<std::string>& patterns,
                                const WorkLimits& limits = {});

// Merges pairs of transient buffers of the same size, where one op reads the first buffer as its last access and writes
// the second as its first access. The op must be allowed to write its output over that input (Validate accepts the two
// operands as the same view). All operands in the second buffer are then renamed to the first. Results do not change. A
// buffer is not merged if its contents pass from one iteration of a loop to the next, if it has a slot for each
// micro-batch, or if it is held for a later instruction (Buffer::held_until).
//
// Keeps all instructions, their order and all other buffers. The second buffer stays in the list, but no instruction
// uses it and it takes no bytes. REQUIRES: CheckStructure accepts the program (engine/compile/program/program.h).
void WorkInPlace(StepProgram& program);

}  // namespace shale
