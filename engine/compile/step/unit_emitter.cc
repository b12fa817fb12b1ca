#include "engine/compile/step/unit_emitter.h"

#include <algorithm>
#include <utility>

#include "engine/strings/pattern.h"
#include "kernels/ops/float8.h"

namespace shale {
namespace {

bool PresetRecomputes(CheckpointingPreset preset, const Value& value) {
  // A scalar, such as the largest magnitude of a matrix, takes less to keep than to compute again.
  if (value.tensor.elements() == 1) return false;
  switch (preset) {
    case CheckpointingPreset::kNone: return false;
    case CheckpointingPreset::kCheap: return value.cheap;
    case CheckpointingPreset::kAttention: return value.sublayer == Sublayer::kAttention && !value.sublayer_input;
    case CheckpointingPreset::kFeedForward: return value.sublayer == Sublayer::kFeedForward && !value.sublayer_input;
    case CheckpointingPreset::kSublayers: return !value.sublayer_input;
    case CheckpointingPreset::kBlock: return true;
  }
  return false;
}

bool MayKeep(const UnitGraph& unit, const Value& value, bool last_unit, const ActivationOptions& options,
             int64_t layers) {
  if (last_unit) return true;
  if (MatchesAny(options.patterns, value.name)) return false;
  return !options.Chosen(layers).Includes(unit.layer) || !PresetRecomputes(options.preset, value);
}

// Makes a value available in backward. Unless it is available already, calls rerun(node), in order, for each of its
// producers that has not run again yet.
template <class Rerun>
void EnsureAvailable(const UnitGraph& unit, std::vector<bool>& available, std::vector<bool>& rerun_done, ValueId id,
                     Rerun&& rerun) {
  if (unit.values[id].role != ValueRole::kActivation || available[id]) return;
  for (int node : unit.values[id].producers) {
    if (rerun_done[node]) continue;
    rerun(node);
    rerun_done[node] = true;
  }
  available[id] = true;
}

using Operands = absl::Span<const UnitAccesses::Operand>;

// Returns whether Node::from_sum recomputes the outputs of `node`: if the node's output `sum` is available.
bool RerunsFromSum(const UnitAccesses& accesses, const std::vector<bool>& available, int node) {
  const ValueId sum = accesses.Sum(node);
  return sum >= 0 && available[sum];
}

// Returns the operands of the op that recomputes the outputs of `node`.
Operands RerunOperands(const UnitAccesses& accesses, const std::vector<bool>& available, int node) {
  return RerunsFromSum(accesses, available, node) ? accesses.FromSum(node) : accesses.Forward(node);
}

// Calls visit(id) for each value that an op reads.
template <class Visitor>
void VisitReads(Operands operands, Visitor&& visit) {
  for (const auto& [value, access] : operands) {
    if (access != Access::kWrite) visit(value);
  }
}

// Returns, by ValueId, the activations that the unit's backward reads, directly or to recompute others. `has` says
// which of them it finds.
std::vector<bool> ReadInBackward(const UnitGraph& unit, const UnitAccesses& accesses, const std::vector<bool>& has) {
  std::vector<bool> read(unit.values.size(), false);
  std::vector<ValueId> wanted;
  const auto want = [&](ValueId id) { wanted.push_back(id); };
  for (int node = 0; node < std::ssize(unit.backward); ++node) VisitReads(accesses.Backward(node), want);
  while (!wanted.empty()) {
    const ValueId id = wanted.back();
    wanted.pop_back();
    const Value& value = unit.values[id];
    if (read[id] || value.role != ValueRole::kActivation) continue;
    read[id] = true;
    if (has[id]) continue;
    for (int node : value.producers) VisitReads(RerunOperands(accesses, has, node), want);
  }
  return read;
}

// Returns, by ValueId, what is read of a forward: by its own ops, by backward, which finds `kept`, and of the last
// unit, whose backward follows at once, everything.
std::vector<bool> ReadOfForward(const UnitGraph& unit, const UnitAccesses& accesses, const std::vector<bool>& kept,
                                bool last_unit) {
  std::vector<bool> read = kept;
  if (last_unit) read.assign(read.size(), true);
  for (int node = 0; node < std::ssize(unit.forward); ++node) {
    VisitReads(accesses.Forward(node), [&](ValueId id) { read[id] = true; });
  }
  return read;
}

// Returns the op without an fp8 matrix that nobody reads, nor its blockwise scales. QuantizeFloat8 writes a matrix as
// it lies, transposed, or both.
Op WithoutUnread(Op op, const std::vector<bool>& read) {
  auto* quantize = op.As<QuantizeFloat8>();
  if (quantize == nullptr || !quantize->out_RC.present() || !quantize->transposed_CR.present()) return op;
  // Where only one of both is kept, it must be written, and so is the other.
  const auto any_is_read = [&](const Tensor& codes, const Tensor& scales) {
    return read[codes.where.symbol] || (scales.present() && read[scales.where.symbol]);
  };
  if (!any_is_read(quantize->transposed_CR, quantize->transposed_scales)) {
    quantize->transposed_CR = quantize->transposed_scales = Tensor();
  } else if (!any_is_read(quantize->out_RC, quantize->out_scales)) {
    quantize->out_RC = quantize->out_scales = Tensor();
  }
  return op;
}

// Returns whether an op accesses value `id`, or with `writes_only` whether it writes it.
bool Touches(Operands operands, ValueId id, bool writes_only) {
  return std::any_of(operands.begin(), operands.end(), [&](const UnitAccesses::Operand& operand) {
    return operand.value == id && (!writes_only || operand.access != Access::kRead);
  });
}

// Returns whether `id` has one producer, which writes nothing else. An op that recomputes `id` then replaces a rerun of
// that producer.
bool IsWholeResult(const UnitGraph& unit, const UnitAccesses& accesses, ValueId id) {
  const std::vector<int>& producers = unit.values[id].producers;
  if (producers.size() != 1) return false;
  const Operands operands = accesses.Forward(producers.front());
  return std::all_of(operands.begin(), operands.end(), [&](const UnitAccesses::Operand& operand) {
    return operand.access == Access::kRead || operand.value == id;
  });
}

// Returns the first backward node after `before` that can recompute activation `id` and may move ahead of `before`. For
// that, `before` and the nodes between the two must not write what it reads or writes, and must not read what it
// writes, except for `id`. Returns -1 if there is no such node.
int RecomputingNode(const UnitGraph& unit, const UnitAccesses& accesses, int before, ValueId id) {
  if (!IsWholeResult(unit, accesses, id)) return -1;
  for (int later = before + 1; later < std::ssize(unit.backward); ++later) {
    const Operands operands = accesses.Recomputing(later);
    if (!Touches(operands, id, /*writes_only=*/true)) continue;
    bool free = true;
    for (const auto& [value, access] : operands) {
      const bool may_be_read = access == Access::kRead || value == id;
      for (int between = before; between < later; ++between) {
        free &= !Touches(accesses.Backward(between), value, /*writes_only=*/may_be_read);
      }
    }
    if (free) return later;
  }
  return -1;
}

// Returns, by forward node, whether a forward runs it. The first one runs all. With `again`, a node runs only if the
// unit's output or a kept value depends on it.
std::vector<bool> NodesToRun(const UnitGraph& unit, const UnitAccesses& accesses, const std::vector<bool>& kept,
                             bool again) {
  std::vector<bool> runs(unit.forward.size(), !again), seen(unit.values.size(), false);
  if (!again) return runs;
  std::vector<ValueId> wanted = {unit.output};
  for (ValueId id = 0; id < std::ssize(unit.values); ++id) {
    if (kept[id]) wanted.push_back(id);
  }
  while (!wanted.empty()) {
    const ValueId id = wanted.back();
    wanted.pop_back();
    if (seen[id]) continue;
    seen[id] = true;
    for (int node : unit.values[id].producers) {
      runs[node] = true;
      VisitReads(accesses.Forward(node), [&](ValueId read) { wanted.push_back(read); });
    }
  }
  return runs;
}

std::vector<bool> AvailableAtStartOfBackward(const UnitGraph& unit, const std::vector<bool>& kept) {
  std::vector<bool> available(unit.values.size(), true);
  for (size_t id = 0; id < unit.values.size(); ++id) {
    if (unit.values[id].role == ValueRole::kActivation) available[id] = kept[id];
  }
  return available;
}

}  // namespace

ValueId SumOf(const Node& node) {
  ValueId sum = -1;
  if (!node.from_sum) return sum;
  VisitOperands(node.op, [&](absl::string_view name, const Tensor& t, Access) {
    if (name == "sum") sum = t.where.symbol;
  });
  return sum;
}

UnitAccesses::UnitAccesses(const UnitGraph& unit)
    : forward_(static_cast<int>(unit.forward.size())), backward_(static_cast<int>(unit.backward.size())) {
  const auto optional = [](const std::optional<Op>& op) { return op ? &*op : nullptr; };
  for (const Node& node : unit.forward) {
    Add(&node.op);
    sums_.push_back(SumOf(node));
    quantizes_ |= node.op.Is<QuantizeFloat8>();
  }
  for (const Node& node : unit.forward) Add(optional(node.from_sum));
  for (const Node& node : unit.backward) Add(&node.op);
  for (const Node& node : unit.backward) Add(optional(node.recomputing));
}

void UnitAccesses::Add(const Op* op) {
  if (op != nullptr) {
    VisitOperands(*op, [&](absl::string_view, const Tensor& t, Access access) {
      if (t.present()) operands_.push_back({t.where.symbol, access});
    });
  }
  begins_.push_back(operands_.size());
}

std::vector<bool> DecideKept(const UnitGraph& unit, const UnitAccesses& accesses, bool last_unit,
                             const ActivationOptions& options, int64_t layers) {
  std::vector<bool> may_keep(unit.values.size());
  for (size_t id = 0; id < may_keep.size(); ++id) {
    may_keep[id] = MayKeep(unit, unit.values[id], last_unit, options, layers);
  }
  // If a value has several producers, the later ones write other parts of it or update it in place. Rerunning one of
  // them for another of its outputs could undo such updates. So if an output of any producer may not be kept, the value
  // is not kept either, and all its producers run again.
  for (size_t id = 0; id < may_keep.size(); ++id) {
    if (unit.values[id].producers.size() < 2) continue;
    for (int node : unit.values[id].producers) {
      for (const auto& [value, access] : accesses.Forward(node)) {
        if (access != Access::kRead && !may_keep[value]) may_keep[id] = false;
      }
    }
  }
  std::vector<bool> kept = ReadInBackward(unit, accesses, may_keep);
  for (size_t id = 0; id < kept.size(); ++id) kept[id] = kept[id] && may_keep[id];
  return kept;
}

UnitEmitter::UnitEmitter(const UnitGraph& unit, const UnitAccesses& accesses, UnitPlan& plan, bool last_unit,
                         const EmitContext& context, Resolver resolver, AccumulationRule accumulation,
                         ProgramWriter& writer)
    : unit_(unit),
      accesses_(accesses),
      plan_(plan),
      kept_(plan.kept),
      last_unit_(last_unit),
      context_(context),
      resolver_(std::move(resolver)),
      accumulation_(std::move(accumulation)),
      writer_(writer),
      bound_(unit.values.size()),
      available_(unit.values.size(), true) {}

Tensor UnitEmitter::Bind(ValueId id, Access access) {
  if (bound_[id].present()) return bound_[id];
  const Value& value = unit_.values[id];
  if (id == unit_.output || id == unit_.input_gradient ||
      (value.role != ValueRole::kActivation && value.role != ValueRole::kGradient)) {
    return bound_[id] = resolver_(value);
  }
  if (value.role == ValueRole::kActivation && kept_[id] && !last_unit_) {
    Tensor& buffer = plan_.buffers[id];
    if (!buffer.present()) {
      buffer = writer_.AddTensor(value.name, BufferCategory::kActivations, value.tensor, plan_.slots);
    }
    return bound_[id] = buffer;
  }
  SHALE_CHECK(access != Access::kRead) << value.name << " is read before it is computed";
  return bound_[id] = writer_.AddTensor(
             value.name, last_unit_ ? BufferCategory::kLossWorkspace : BufferCategory::kWorkspace, value.tensor);
}

void UnitEmitter::EmitNode(Op op, Phase phase) {
  std::vector<const Value*> accumulated;
  // An op lists the operands that it reads first, so Bind detects a value that is read before any op has written it.
  VisitOperands(op, [&](absl::string_view, Tensor& t, Access access) {
    if (!t.present()) return;
    const Value& value = unit_.values[t.where.symbol];
    if (value.role == ValueRole::kParameterGradient || value.role == ValueRole::kLossTotal) {
      accumulated.push_back(&value);
    }
    const Tensor storage = Bind(t.where.symbol, access);
    t.where.symbol = storage.where.symbol;
    t.where.offset_bytes += storage.where.offset_bytes;
    t.where.shard_stride_bytes = storage.where.shard_stride_bytes;
  });
  context_.phase = phase;
  const bool first_iteration_differs = !accumulated.empty() && accumulation_(op, accumulated);
  writer_.Emit(context_, std::move(op), first_iteration_differs);
}

void UnitEmitter::Emit(VisitWork work) {
  if (work == VisitWork::kForward && plan_.runs_again) kept_.assign(kept_.size(), false);
  if (work != VisitWork::kBackward) EmitForward(work);
  if (HasBackward(work)) EmitBackward();
}

// Emits the ops in the order of the graph also in a second forward, so that each op reads a value that other ops update
// in place in the same state as in the first.
void UnitEmitter::EmitForward(VisitWork work) {
  const std::vector<bool> runs = NodesToRun(unit_, accesses_, kept_, work == VisitWork::kForwardAgain);
  std::vector<bool> read;
  if (accesses_.quantizes()) read = ReadOfForward(unit_, accesses_, kept_, last_unit_);
  for (size_t node = 0; node < runs.size(); ++node) {
    if (runs[node]) EmitNode(WithoutUnread(unit_.forward[node].op, read), PhaseOf(work));
  }
}

void UnitEmitter::EmitBackward() {
  if (!last_unit_) {
    available_ = AvailableAtStartOfBackward(unit_, kept_);
    if (accesses_.quantizes()) read_in_backward_ = ReadInBackward(unit_, accesses_, kept_);
    rerun_done_.assign(unit_.forward.size(), false);
    bound_.assign(unit_.values.size(), Tensor());
  }
  std::vector<bool> emitted(unit_.backward.size());
  for (int node = 0; node < std::ssize(unit_.backward); ++node) {
    if (emitted[node]) continue;
    BringForward(node, emitted);
    EnsureReads(accesses_.Backward(node));
    EmitNode(unit_.backward[node].op, Phase::kBackward);
  }
}

void UnitEmitter::BringForward(int node, std::vector<bool>& emitted) {
  for (const auto& [value, access] : accesses_.Backward(node)) {
    if (access == Access::kRead) BringForward(node, value, emitted);
  }
}

void UnitEmitter::BringForward(int node, ValueId id, std::vector<bool>& emitted) {
  if (unit_.values[id].role != ValueRole::kActivation || available_[id]) return;
  const std::vector<int>& producers = unit_.values[id].producers;
  const int later = RecomputingNode(unit_, accesses_, node, id);
  if (later < 0) {
    for (int producer : producers) {
      const auto* quantize = unit_.forward[producer].op.As<QuantizeFloat8>();
      if (quantize != nullptr) BringForward(node, quantize->x_RC.where.symbol, emitted);
    }
    return;
  }
  EnsureReads(accesses_.Recomputing(later));
  EmitNode(*unit_.backward[later].recomputing, Phase::kBackward);
  emitted[later] = true;
  for (int producer : producers) rerun_done_[producer] = true;
  available_[id] = true;
}

void UnitEmitter::Ensure(ValueId id) {
  EnsureAvailable(unit_, available_, rerun_done_, id, [&](int node) { Rerun(node); });
}

void UnitEmitter::EnsureReads(Operands operands) {
  // A value that the op updates in place needs nothing: EnsureAvailable has just rerun its earlier producers.
  for (const auto& [value, access] : operands) {
    if (access == Access::kRead) Ensure(value);
  }
}

void UnitEmitter::Rerun(int node) {
  const bool from_sum = RerunsFromSum(accesses_, available_, node);
  EnsureReads(from_sum ? accesses_.FromSum(node) : accesses_.Forward(node));
  const Op& op = from_sum ? *unit_.forward[node].from_sum : unit_.forward[node].op;
  EmitNode(WithoutUnread(op, read_in_backward_), Phase::kRecompute);
}

std::vector<GroupId> GroupsRead(const ModelGraph& model, const UnitGraph& unit, const UnitAccesses& accesses,
                                const std::vector<bool>& kept, VisitWork work) {
  std::vector<bool> reads(model.groups.size(), false);
  std::vector<bool> available = AvailableAtStartOfBackward(unit, kept), rerun_done(unit.forward.size(), false);
  const auto visit = [&](const auto& self, Operands operands, bool recompute) -> void {
    for (const auto& [id, access] : operands) {
      if (access != Access::kRead) continue;
      const Value& value = unit.values[id];
      if (value.role == ValueRole::kParameter) reads[model.parameters[value.parameter].group] = true;
      if (!recompute) continue;
      EnsureAvailable(unit, available, rerun_done, id,
                      [&](int node) { self(self, RerunOperands(accesses, available, node), true); });
    }
  };
  const auto forward = static_cast<int>(unit.forward.size()), backward = static_cast<int>(unit.backward.size());
  if (work != VisitWork::kBackward) {
    const std::vector<bool> runs = NodesToRun(unit, accesses, kept, work == VisitWork::kForwardAgain);
    for (int node = 0; node < forward; ++node) {
      if (runs[node]) visit(visit, accesses.Forward(node), false);
    }
  }
  if (HasBackward(work)) {
    for (int node = 0; node < backward; ++node) visit(visit, accesses.Backward(node), true);
  }
  std::vector<GroupId> groups;
  for (GroupId group = 0; group < std::ssize(reads); ++group) {
    if (reads[group]) groups.push_back(group);
  }
  return groups;
}

}  // namespace shale
