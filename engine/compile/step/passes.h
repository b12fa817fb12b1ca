// Passes: functions that change a compiled program. The compiler emits gathers, forward, backward, reductions and
// updates one after another (engine/compile/step/compile.cc), as if all state lay in the arena and everything ran when
// it is needed. Passes make of this what the options of the job ask for. No pass changes results.
//
// Below, each pass says what it does, what it assumes ("REQUIRES") and what it keeps. ListPasses, at the end, lists
// those that a compiled program goes through, in their order, and says why each stands where it stands. To add one:
// declare it here and add its row to ListPasses, write it in a file passes_NAME.cc, and test it on a program built by
// hand (tests/engine/compile/step/pass_fixture.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/state.h"
#include "kernels/op_backend.h"

namespace shale {

// Updates groups while the backward goes on, for UpdateTime::kInBackward. The plain program updates all groups at its
// end. This pass moves the totals and the update of a group to where its gradient is complete, so that the gradient
// takes no bytes from there on. If the new weights are gathered right after the update, that all-gather moves too.
//
//   one rank                               several ranks
//     backward of unit u                     backward of unit u
//     reductions of unit u                   totals of the groups of unit u + 1, summed over ranks
//     totals of the groups of unit u         reductions of unit u
//     updates of the groups of unit u        updates of the groups of unit u + 1, whose gradients end here
//
// On several ranks a group waits for the next backward, beside which its gradient is reduced. Its totals go ahead of
// the reductions of that backward on the reduce stream, so that its update need not wait for these. The groups of the
// last backward stay at the end of the step. In a loop over micro-batches, what is moved runs in the last iteration.
//
// Keeps the order of all other instructions, and of groups whose gradients one visit completes. The PrepareUpdate of
// the group that is now updated last counts the update, in place of that which did. REQUIRES:
// - All updates are in the last loop, none is of a composed optimizer, and each stands right after its PrepareUpdate,
//   but for a Copy that widens its gradient.
// - The totals of all groups have rows in one buffer, in the order of the updates. All instructions that write a row
//   stand before the first PrepareUpdate. What else stands there is needed by the totals of all groups.
// - The reductions of a visit, with Phase::kReduce, are its last instructions.
void UpdateInBackward(StepProgram& program, Accumulation accumulation, int64_t ranks);

// Rounds gradients that leave a rank in bf16 as soon as they are complete, so that few bytes of them exist in fp32
// ([Note: gradients that leave in bf16] in engine/compile/step/reduce.h). The plain program rounds the gradient of a
// unit as a whole, after its backward. With this pass, a gradient that one matmul computes goes into a temporary
// buffer, and from there into what is sent:
//
//   before   MatMul d_a                                  MatMul d_b                 Accumulate a and b
//   after    MatMul rows of d_a, Accumulate them, ...    MatMul d_b, Accumulate b
//
// A temporary buffer has at most `piece_bytes`, or an eighth of the bytes of the unit's gradient if that is more. A
// larger gradient is computed and rounded in pieces of some rows each, by one matmul after another. Two exceptions take
// more: a piece has at least kRandomBlock rows, and a matmul in fp8 with tiles of scales is not divided.
//
// All elements get the bits that they had: random bits depend on the place of an element in the gradient, and an
// element of a matmul is computed from its row and column. Only where a library chooses another order of summation for
// another number of rows (oneDNN, cuBLASLt) may the last bit of an fp32 gradient be another one.
//
// All other gradients stay in fp32 until the backward ends: those that no matmul computes, as of norms, biases and
// embeddings, and those that several ops add up. So does everything where the iterations of a loop add to a gradient
// before it is rounded, as in LAYERED.
//
// The copy of the micro-batch's number, which the random bits need, moves ahead of the first piece. Keeps the order of
// all other instructions. REQUIRES: what writes a gradient stands before the op that rounds it.
void RoundInBackward(StepProgram& program, int64_t piece_bytes);

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
//   them, or the update, reads. The first is no Copy. A Copy that widens the gradient, and the PrepareUpdate, stand
//   before these.
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
// or nothing if all ops have that. It is not in ListPasses, because a plan takes it only where the budget has room.
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

// Returns whether the program updates. Programs that only evaluate or generate do not.
bool HasUpdates(const StepProgram& program);

// A row of the list of passes: whether the pass applies to a program, and its call.
struct Pass {
  template <class Call>
  Pass(absl::string_view name, bool applies, Call call)
      : name(name), applies(applies), run([call]() -> absl::Status {
          if constexpr (std::is_void_v<decltype(call())>) {
            call();
            return absl::OkStatus();
          } else {
            return call();
          }
        }) {}

  absl::string_view name;
  bool applies;
  std::function<absl::Status()> run;
};

// Returns the one list of passes, in their order. The comment of a row says why the pass stands there. Borrows the
// arguments. Launches no op: `ops` only says what ops need, and which it has kernels for.
inline std::vector<Pass> ListPasses(const StepOptions& options, const JobState& state, const Ops& ops,
                                    const WorkLimits& limits, StepProgram& program) {
  const bool updates = HasUpdates(program), prepares_once = updates && options.prepares_weights_once;
  const bool layered = options.accumulation == Accumulation::kLayered;
  return {
      // First, because UpdateOnHost and OffloadState look for updates where they run.
      {"UpdateInBackward", updates && options.update == UpdateTime::kInBackward,
       [&] { UpdateInBackward(program, options.accumulation, options.mesh.ranks()); }},
      // After UpdateInBackward, which takes the reductions of a visit for its last instructions. Before
      // OverlapCollectives, which holds what is sent.
      {"RoundInBackward", updates && options.reduce != DType::kFloat32,
       [&] { RoundInBackward(program, options.sent_part_bytes); }},
      // Before those that follow, which move and copy what it gathers.
      {"GatherFloat8", true, [&] { GatherFloat8(program, state); }},
      // Then, because it finds the visits by what stands side by side, before copies work ahead too.
      {"OverlapCollectives", true, [&] { OverlapCollectives(program, options.prefetch); }},
      // Before OffloadState, which copies only what updates on the device need.
      {"UpdateOnHost", updates && options.updates_on_host(), [&] { UpdateOnHost(program, state.host_weights()); }},
      // After OverlapCollectives, because weights are copied one visit ahead of where their all-gather is issued.
      {"OffloadState", options.offload_state.any(), [&] { OffloadState(program); }},
      // After OffloadState, whose copies change weights within a loop.
      {"QuantizeOnce", prepares_once, [&] { return QuantizeOnce(program, limits); }},
      // After QuantizeOnce, because it packs what no iteration writes. Before AddScratch, because an op that finds b
      // packed needs less scratch.
      {"PackOnce", prepares_once && layered, [&] { return PackOnce(program, ops, limits); }},
      // After all passes that move ops to another stream or change what they find packed.
      {"AddScratch", true, [&] { return AddScratch(program, ops, limits); }},
      // After all other passes that find visits: its copies work for units that compute at another time.
      {"OffloadActivations", !options.activations.offload.empty(),
       [&] { return OffloadActivations(program, options.activations.offload, limits); }},
      // Last, because it looks for buffers that end where others begin: a tensor that is offloaded ends early.
      {"WorkInPlace", true, [&] { WorkInPlace(program); }},
  };
}

}  // namespace shale
