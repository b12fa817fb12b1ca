// UseFloat8Sources: lets the ops that quantize a matrix compute it.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "engine/compile/graph/graph.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/norm.h"

namespace shale {
namespace {

// A matrix that an op writes, and the source that computes it again from `x`.
struct SourceOf {
  Tensor matrix, x;
  Float8Source source;
};

std::optional<SourceOf> FindSource(const Op& op) {
  using Kind = Float8Source::Kind;
  if (const auto* norm = op.As<RmsNormForward>()) {
    return SourceOf{.matrix = norm->y,
                    .x = norm->sum.present() ? norm->sum : norm->x,
                    .source = {.kind = Kind::kNorm,
                               .weight_C = norm->weight_C,
                               .rstd_R = norm->rstd_R,
                               .weight_offset = norm->weight_offset}};
  }
  if (const auto* gate = op.As<SwiGluForward>()) {
    return SourceOf{.matrix = gate->y_TF, .x = gate->gate_up_T2F, .source = {.kind = Kind::kGate, .gate = gate->gate}};
  }
  const auto* gradient = op.As<SwiGluBackward>();
  if (gradient == nullptr || gradient->y_TF.present()) return std::nullopt;
  return SourceOf{.matrix = gradient->d_gate_up_T2F,
                  .x = gradient->gate_up_T2F,
                  .source = {.kind = Kind::kGateGradient, .d_y_RF = gradient->d_y_TF, .gate = gradient->gate}};
}

// Returns the tensors of a source that are present.
std::vector<Tensor> OperandsOf(const SourceOf& found) {
  std::vector<Tensor> operands = {found.x};
  Float8Source::Visit(found.source, [&](absl::string_view, const Tensor& t, Access) {
    if (t.present()) operands.push_back(t);
  });
  return operands;
}

bool Accesses(const Op& op, ValueId id, bool writes_only) {
  bool found = false;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
    found |= t.present() && t.where.symbol == id && (!writes_only || access != Access::kRead);
  });
  return found;
}

// Returns the matrix that an op quantizes, or of which it finds the maximum. Returns null for other ops, and for those
// that compute their matrix.
const Tensor* QuantizedBy(const Op& op) {
  const auto* find = op.As<AbsMax>();
  if (find != nullptr) return find->source.kind == Float8Source::Kind::kMatrix ? &find->x_RC : nullptr;
  const auto* quantize = op.As<QuantizeFloat8>();
  if (quantize == nullptr || quantize->source.kind != Float8Source::Kind::kMatrix) return nullptr;
  return &quantize->x_RC;
}

void SetSource(Op& op, const SourceOf& found) {
  if (auto* find = op.As<AbsMax>()) {
    find->x_RC = found.x;
    find->source = found.source;
  } else {
    auto* quantize = op.As<QuantizeFloat8>();
    quantize->x_RC = found.x;
    quantize->source = found.source;
  }
}

class SourceUser {
 public:
  explicit SourceUser(UnitGraph& unit) : unit_(unit) {}

  void Run() {
    Use(unit_.forward);
    RemoveForward();
    // After forward: what computes a gradient may also recompute an activation, which forward may not need any more.
    Use(unit_.backward);
    std::vector<Node> backward;
    for (size_t node = 0; node < unit_.backward.size(); ++node) {
      if (!removed_[node]) backward.push_back(std::move(unit_.backward[node]));
    }
    unit_.backward = std::move(backward);
  }

 private:
  // Looks for matrices among the results of `nodes`, forward or backward. Sets `removed_`.
  void Use(std::vector<Node>& nodes) {
    removed_.assign(nodes.size(), false);
    for (size_t node = 0; node < nodes.size(); ++node) {
      const std::optional<SourceOf> found = FindSource(nodes[node].op);
      if (!found || !found->matrix.present() || found->matrix.dtype == DType::kFloat32) continue;
      const std::vector<size_t> readers = ReadersOf(nodes, node, found->matrix);
      if (readers.empty() || !Lasts(nodes, node, *found) || !MayRead(nodes, readers, *found)) continue;
      for (const size_t reader : readers) SetSource(nodes[reader].op, *found);
      Drop(nodes, node, found->matrix.where.symbol);
    }
  }

  // Returns the nodes that read the matrix which `node` writes. Returns none if one of them does not quantize it as a
  // whole, or if others need it: the next unit, or the other of forward and backward.
  std::vector<size_t> ReadersOf(const std::vector<Node>& nodes, size_t node, const Tensor& matrix) const {
    const ValueId id = matrix.where.symbol;
    const Value& value = unit_.values[id];
    const bool forward = &nodes == &unit_.forward;
    const bool own = value.role == (forward ? ValueRole::kActivation : ValueRole::kGradient) && id != unit_.output &&
                     id != unit_.input_gradient;
    if (!own || matrix.rank != 2 || nodes[node].recomputing || (forward && value.producers.size() != 1)) return {};
    std::vector<size_t> readers;
    for (size_t other = 0; other < nodes.size(); ++other) {
      if (other == node || !Accesses(nodes[other].op, id, /*writes_only=*/false)) continue;
      const Tensor* quantized = QuantizedBy(nodes[other].op);
      if (quantized == nullptr || other < node || !IsSameView(*quantized, matrix)) return {};
      readers.push_back(other);
    }
    for (const Node& other : forward ? unit_.backward : unit_.forward) {
      if (Accesses(other.op, id, /*writes_only=*/false)) return {};
    }
    return readers;
  }

  // Returns whether no op changes what a source is computed from after `node` has computed it.
  bool Lasts(const std::vector<Node>& nodes, size_t node, const SourceOf& found) const {
    for (const Tensor& t : OperandsOf(found)) {
      const auto writes = [&](const Node& other) { return Accesses(other.op, t.where.symbol, /*writes_only=*/true); };
      if (std::any_of(nodes.begin() + static_cast<int64_t>(node) + 1, nodes.end(), writes)) return false;
      const bool forward = &nodes == &unit_.forward;
      if (forward && std::any_of(unit_.backward.begin(), unit_.backward.end(), writes)) return false;
    }
    return true;
  }

  // Returns whether the readers may read what a source is computed from. Backward may want their results, and compute
  // them again. So it keeps what they read, unless that is what it reads anyway.
  bool MayRead(const std::vector<Node>& nodes, const std::vector<size_t>& readers, const SourceOf& found) const {
    if (&nodes == &unit_.backward) return true;
    bool wanted = false;
    for (const size_t reader : readers) {
      VisitOperands(nodes[reader].op, [&](absl::string_view, const Tensor& t, Access access) {
        if (t.present() && access != Access::kRead) wanted |= BackwardReads(t.where.symbol);
      });
    }
    const std::vector<Tensor> operands = OperandsOf(found);
    return !wanted || std::all_of(operands.begin(), operands.end(), [&](const Tensor& t) {
      return unit_.values[t.where.symbol].role != ValueRole::kActivation || BackwardReads(t.where.symbol);
    });
  }

  bool BackwardReads(ValueId id) const {
    return std::any_of(unit_.backward.begin(), unit_.backward.end(),
                       [&](const Node& node) { return Accesses(node.op, id, /*writes_only=*/false); });
  }

  // Drops the output `id` of `node`, and with it all of the node if that writes nothing else.
  void Drop(std::vector<Node>& nodes, size_t node, ValueId id) {
    unit_.values[id].producers.clear();
    const auto drop = [](Op& op) {
      auto* norm = op.As<RmsNormForward>();
      norm->y = norm->weight_C = Tensor();
    };
    if (nodes[node].op.Is<RmsNormForward>()) {
      drop(nodes[node].op);
      if (nodes[node].from_sum) drop(*nodes[node].from_sum);
    } else {
      removed_[node] = true;
    }
    for (Node& other : unit_.backward) {
      if (other.recomputing && Accesses(*other.recomputing, id, /*writes_only=*/true)) other.recomputing.reset();
    }
  }

  // Takes the removed nodes out of forward.
  void RemoveForward() {
    std::vector<Node> forward;
    std::vector<int> places;
    for (size_t node = 0; node < unit_.forward.size(); ++node) {
      places.push_back(static_cast<int>(forward.size()));
      if (!removed_[node]) forward.push_back(std::move(unit_.forward[node]));
    }
    unit_.forward = std::move(forward);
    for (Value& value : unit_.values) {
      for (int& producer : value.producers) producer = places[producer];
    }
  }

  UnitGraph& unit_;
  std::vector<bool> removed_;
};

}  // namespace

void UseFloat8Sources(UnitGraph& unit) { SourceUser(unit).Run(); }

}  // namespace shale
