// Turns a unit's nodes into instructions: binds values to buffers, and recomputes what was not kept.
#pragma once

#include <functional>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/step/visits.h"
#include "engine/step/writer.h"

namespace shale {

// Where the values of a unit that are not local to one iteration lie.
class UnitBuffers {
 public:
  // `kept`: the activations that stay from forward, or from when it runs again, to backward. `slots`: K when all
  // micro-batches run through a unit before the next one, else 1.
  UnitBuffers(const UnitGraph& unit, std::vector<bool> kept, int64_t slots, ProgramWriter& writer);

  // The buffer of a kept activation, made at first use.
  Tensor Kept(ValueId id);
  const std::vector<bool>& kept() const { return kept_; }

 private:
  const UnitGraph& unit_;
  std::vector<bool> kept_;
  int64_t slots_;
  ProgramWriter& writer_;
  std::vector<Tensor> buffers_;
};

// One iteration of one visit of a unit (engine/step/visits.h).
class UnitEmitter {
 public:
  // Finds the buffer of a value that is no activation: input, gradients at the border, parameters, data.
  using Resolver = std::function<Tensor(const Value&)>;
  // Sets how an op that writes parameter gradients or the loss total adds up: called with the op and the written
  // values, before it is emitted. Returns Instruction::first_iteration_differs.
  using AccumulationRule = std::function<bool(Op&, const std::vector<const Value*>&)>;

  // `packs_once`: all micro-batches run through the unit one after the other while its parameters stay where they are.
  // Matmuls then pack these in the first micro-batch, and keep them for the others.
  UnitEmitter(const UnitGraph& unit, UnitBuffers& buffers, bool last_unit, bool packs_once, const EmitContext& context,
              Resolver resolver, AccumulationRule accumulation, ProgramWriter& writer);

  void Emit(Work work);

 private:
  void EmitForward();
  void EmitForwardAgain();
  void EmitBackward();
  Tensor Bind(ValueId id, Access access);
  void EmitNode(Op op, Phase phase);
  // Gives a matmul whose b is a parameter a place to keep it packed in, where the device has a use for one; returns
  // Instruction::first_iteration_differs.
  bool KeepPacked(MatMul& matmul);
  // Emits ahead of backward node `node` those later ones that compute what it reads.
  void BringForward(int node, std::vector<bool>& emitted);
  void Ensure(ValueId id);
  void EnsureReads(const Op& op);
  void Rerun(int node);

  const UnitGraph& unit_;
  UnitBuffers& buffers_;
  const bool last_unit_, packs_once_;
  EmitContext context_;
  Resolver resolver_;
  AccumulationRule accumulation_;
  ProgramWriter& writer_;
  std::vector<Tensor> bound_;     // By value, in this iteration.
  std::vector<bool> available_;   // By value: holds its final bytes.
  std::vector<bool> rerun_done_;  // By forward node, in backward.
  std::vector<MatMul> packing_;   // Matmuls of this iteration that keep their b packed.
};

// Returns the groups whose parameters the unit reads in a visit. `kept`: what its backward finds.
std::vector<GroupId> GroupsRead(const ModelGraph& model, const UnitGraph& unit, const std::vector<bool>& kept,
                                Work work);

}  // namespace shale
