// UnitEmitter: turns a unit's nodes into instructions. Binds values to buffers, and recomputes what was not kept.
//
// DecideKept decides which activations of a unit stay from forward to backward.
//
// UnitAccesses: the operands of a unit's nodes, for code that asks for them again and again.
#pragma once

#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/visits.h"
#include "engine/compile/step/writer.h"

namespace shale {

// Returns the output `sum` of a node, from which Node::from_sum computes the other outputs again. Returns -1 if the
// node has no from_sum.
ValueId SumOf(const Node& node);

// What the ops of a unit read and write: their present operands, in the order of VisitOperands, which is slow in
// comparison.
class UnitAccesses {
 public:
  explicit UnitAccesses(const UnitGraph& unit);

  struct Operand {
    ValueId value = -1;
    Access access = Access::kRead;
  };
  absl::Span<const Operand> Forward(int node) const { return List(node); }
  absl::Span<const Operand> Backward(int node) const { return List(2 * forward_ + node); }
  // Of Node::from_sum and Node::recomputing. Empty if the node has none.
  absl::Span<const Operand> FromSum(int node) const { return List(forward_ + node); }
  absl::Span<const Operand> Recomputing(int node) const { return List(2 * forward_ + backward_ + node); }
  // SumOf a forward node.
  ValueId Sum(int node) const { return sums_[node]; }
  // Whether an op of the forward is QuantizeFloat8.
  bool quantizes() const { return quantizes_; }

 private:
  void Add(const Op* op);
  absl::Span<const Operand> List(int list) const {
    return absl::MakeConstSpan(operands_).subspan(begins_[list], begins_[list + 1] - begins_[list]);
  }

  const int forward_, backward_;  // Nodes.
  std::vector<Operand> operands_;
  std::vector<size_t> begins_ = {0};  // By list.
  std::vector<ValueId> sums_;
  bool quantizes_ = false;
};

// Returns, by ValueId, whether the value is an activation that is kept from forward to backward. These are the
// activations that the unit's backward reads, directly or to recompute others, and that `options` allows to keep.
// Backward recomputes the other activations that it reads from the kept ones and the unit's input. The last unit
// recomputes nothing, because its backward follows its forward at once. A unit that runs forward again (in a segment)
// keeps these values from that second forward to backward. `layers` is the number of blocks in the model.
std::vector<bool> DecideKept(const UnitGraph& unit, const UnitAccesses& accesses, bool last_unit,
                             const ActivationOptions& options, int64_t layers);

// What a unit keeps from forward to backward, and the buffers at its boundaries. All of them have `slots` slots. The
// emitters of the unit's visits share it.
struct UnitPlan {
  std::vector<bool> kept;  // By ValueId: the activations that its backward finds (DecideKept).
  // Whether forward runs twice, in a segment. Then the second one keeps `kept`, and the first one nothing.
  bool runs_again = false;
  int64_t slots = 1;            // K if all micro-batches run through a unit before the next unit, else 1.
  std::vector<Tensor> buffers;  // By ValueId: those of `kept`, once UnitEmitter has added them.
  Tensor output, output_gradient;
  Tensor output_again;  // The output of the second forward, which backward reads. `output` if forward runs once.
};

// Emits one iteration of one visit of a unit (engine/compile/step/visits.h). Borrows the references that the
// constructor takes.
class UnitEmitter {
 public:
  // Returns the tensor of a value that others use too: the unit's input and output, the gradients of these two,
  // parameters and their gradients, and data.
  using Resolver = std::function<Tensor(const Value&)>;
  // Sets whether an op that writes parameter gradients or the loss total accumulates into them. It is called with the
  // op and these values, before the op is emitted. Returns the value of Instruction::first_iteration_differs.
  using AccumulationRule = std::function<bool(Op&, const std::vector<const Value*>&)>;

  UnitEmitter(const UnitGraph& unit, const UnitAccesses& accesses, UnitPlan& plan, bool last_unit,
              const EmitContext& context, Resolver resolver, AccumulationRule accumulation, ProgramWriter& writer);

  // Call it once.
  void Emit(VisitWork work);

 private:
  void EmitForward(VisitWork work);
  void EmitBackward();
  Tensor Bind(ValueId id, Access access);
  void EmitNode(Op op, Phase phase);
  // Moves later backward nodes ahead of backward node `node` if they can recompute an activation that it reads
  // (Node::recomputing), or one of whose fp8 form it reads. Emits them and sets them in `emitted`.
  void BringForward(int node, std::vector<bool>& emitted);
  void BringForward(int node, ValueId id, std::vector<bool>& emitted);
  // Makes a value available in backward: reruns its producers unless it was kept or has been recomputed already.
  void Ensure(ValueId id);
  // Calls Ensure for every value that an op with these operands reads.
  void EnsureReads(absl::Span<const UnitAccesses::Operand> operands);
  // Emits forward node `node` again, and before that what it reads.
  void Rerun(int node);

  const UnitGraph& unit_;
  const UnitAccesses& accesses_;
  UnitPlan& plan_;
  std::vector<bool> kept_;  // By value: whether it is kept in this visit.
  const bool last_unit_;
  EmitContext context_;
  Resolver resolver_;
  AccumulationRule accumulation_;
  ProgramWriter& writer_;
  std::vector<Tensor> bound_;     // By value: its tensor in this iteration, once it is bound.
  std::vector<bool> available_;   // By value: whether its contents are complete.
  std::vector<bool> rerun_done_;  // By forward node: whether backward needs no further rerun of it.
  // By value: whether backward reads it, directly or to recompute others. Set in units that quantize.
  std::vector<bool> read_in_backward_;
};

// Returns the groups whose parameters the unit reads in a visit that does `work`. `kept`: the activations that its
// backward finds (DecideKept).
std::vector<GroupId> GroupsRead(const ModelGraph& model, const UnitGraph& unit, const UnitAccesses& accesses,
                                const std::vector<bool>& kept, VisitWork work);

}  // namespace shale
