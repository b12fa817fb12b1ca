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
#include "kernels/ops/rope.h"

namespace shale {
namespace {

// A matrix that an op writes, and the source that computes it again from `x`. If x is the matrix itself, the op changes
// it in place.
struct SourceOf {
  Tensor matrix, x;
  Float8Source source;
};

// Returns the source that rotates a gradient back: a whole matrix, whose first columns are the heads of the op.
std::optional<SourceOf> RotationOf(const Rope& rope) {
  const Tensor& heads = rope.x_BSHD;
  const int64_t B = heads.dim(0), S = heads.dim(1), H = heads.dim(2), D = heads.dim(3), columns = heads.stride(1);
  const bool fits = heads.stride(2) == D && columns >= H * D && (B == 1 || heads.stride(0) == S * columns);
  if (!rope.inverse || rope.begins_B.present() || !fits) return std::nullopt;
  Tensor matrix = Tensor::Contiguous(heads.dtype, {B * S, columns});
  matrix.where = heads.where;
  const Float8Source::Rotation rotation = {
      .sequence_length = S, .heads = H, .head_width = D, .theta = rope.theta, .scaling = rope.scaling};
  return SourceOf{
      .matrix = matrix,
      .x = matrix,
      .source = {.kind = Float8Source::Kind::kRope, .position_ids_BS = rope.position_ids_BS, .rotation = rotation}};
}

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
  if (const auto* norm = op.As<LayerNormForward>()) {
    return SourceOf{.matrix = norm->y,
                    .x = norm->sum.present() ? norm->sum : norm->x,
                    .source = {.kind = Kind::kLayerNorm,
                               .weight_C = norm->weight_C,
                               .bias_C = norm->bias_C,
                               .mean_R = norm->mean_R,
                               .rstd_R = norm->rstd_R}};
  }
  if (const auto* rope = op.As<Rope>()) return RotationOf(*rope);
  if (const auto* gelu = op.As<GeluForward>()) {
    return SourceOf{.matrix = gelu->y_TF, .x = gelu->x_TF, .source = {.kind = Kind::kGelu, .gelu = gelu->kind}};
  }
  if (const auto* gelu = op.As<GeluBackward>(); gelu != nullptr && !gelu->y_TF.present()) {
    return SourceOf{.matrix = gelu->d_x_TF,
                    .x = gelu->x_TF,
                    .source = {.kind = Kind::kGeluGradient, .d_y_RF = gelu->d_y_TF, .gelu = gelu->kind}};
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

// The nodes of forward or of backward, with the values that their ops access.
struct NodeList {
  struct Operand {
    ValueId value;
    Access access;
  };
  explicit NodeList(std::vector<Node>& of) : nodes(of) {
    for (const Node& node : nodes) {
      std::vector<Operand>& operands = accesses.emplace_back();
      VisitOperands(node.op, [&](absl::string_view, const Tensor& t, Access access) {
        if (t.present()) operands.push_back({t.where.symbol, access});
      });
    }
  }
  bool Accesses(size_t node, ValueId id) const {
    return std::any_of(accesses[node].begin(), accesses[node].end(), [&](const Operand& o) { return o.value == id; });
  }
  // Returns whether a node from `first` on writes a value.
  bool WritesFrom(size_t first, ValueId id) const {
    for (size_t node = first; node < accesses.size(); ++node) {
      for (const auto& [value, access] : accesses[node]) {
        if (value == id && access != Access::kRead) return true;
      }
    }
    return false;
  }
  bool AnyAccesses(ValueId id) const {
    for (size_t node = 0; node < accesses.size(); ++node) {
      if (Accesses(node, id)) return true;
    }
    return false;
  }

  std::vector<Node>& nodes;
  std::vector<std::vector<Operand>> accesses;  // By node.
};

bool Writes(const Op& op, ValueId id) {
  bool writes = false;
  VisitOperands(op, [&](absl::string_view, const Tensor& t, Access access) {
    writes |= t.present() && t.where.symbol == id && access != Access::kRead;
  });
  return writes;
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
    Use(/*forward=*/true);
    // After forward: what computes a gradient may also recompute an activation, which forward may not need any more.
    Use(/*forward=*/false);
  }

 private:
  // Looks for matrices among the results of forward or of backward.
  void Use(bool forward) {
    NodeList own(forward ? unit_.forward : unit_.backward);
    const NodeList others(forward ? unit_.backward : unit_.forward);
    std::vector<bool> removed(own.nodes.size(), false);
    for (size_t node = 0; node < own.nodes.size(); ++node) {
      const std::optional<SourceOf> found = FindSource(own.nodes[node].op);
      if (!found || !found->matrix.present() || !IsOwn(found->matrix, own.nodes[node], forward)) continue;
      const std::vector<size_t> readers = ReadersOf(own, node, *found);
      const ValueId id = found->matrix.where.symbol;
      if (readers.empty() || others.AnyAccesses(id)) continue;
      const std::vector<Tensor> operands = OperandsOf(*found);
      const bool last = std::none_of(operands.begin(), operands.end(), [&](const Tensor& t) {
        return own.WritesFrom(node + 1, t.where.symbol) || (forward && others.WritesFrom(0, t.where.symbol));
      });
      if (!last || (forward && KeepsMore(own, readers, operands, others))) continue;
      for (const size_t reader : readers) SetSource(own.nodes[reader].op, *found);
      removed[node] = Drop(own.nodes[node], id);
    }
    Remove(own.nodes, removed, forward);
  }

  // Returns whether a matrix belongs to forward, or to backward, alone, and whether its op, that of `node`, writes all
  // of it and computes nothing else on the way.
  bool IsOwn(const Tensor& matrix, const Node& node, bool forward) const {
    const ValueId id = matrix.where.symbol;
    const Value& value = unit_.values[id];
    return value.role == (forward ? ValueRole::kActivation : ValueRole::kGradient) && id != unit_.output &&
           id != unit_.input_gradient && matrix.rank == 2 && matrix.dtype != DType::kFloat32 && !node.recomputing &&
           (!forward || value.producers.size() == 1);
  }

  // Returns the nodes that read the matrix which `node` writes. Returns none if one of them does anything with it but
  // quantize it as a whole. Those before a node that changes the matrix in place see it as it is without that node.
  static std::vector<size_t> ReadersOf(const NodeList& list, size_t node, const SourceOf& found) {
    const Tensor& matrix = found.matrix;
    std::vector<size_t> readers;
    for (size_t other = IsSameView(matrix, found.x) ? node + 1 : 0; other < list.nodes.size(); ++other) {
      if (other == node || !list.Accesses(other, matrix.where.symbol)) continue;
      const Tensor* quantized = QuantizedBy(list.nodes[other].op);
      if (quantized == nullptr || other < node || !IsSameView(*quantized, matrix)) return {};
      readers.push_back(other);
    }
    return readers;
  }

  // Returns whether backward would keep more if `readers` read these operands. It may want their results, and compute
  // them again. So it keeps what they read, unless it reads all of that anyway.
  bool KeepsMore(const NodeList& forward, const std::vector<size_t>& readers, const std::vector<Tensor>& operands,
                 const NodeList& backward) const {
    bool wanted = false;
    for (const size_t reader : readers) {
      for (const auto& [value, access] : forward.accesses[reader]) {
        wanted |= access != Access::kRead && backward.AnyAccesses(value);
      }
    }
    return wanted && std::any_of(operands.begin(), operands.end(), [&](const Tensor& t) {
             return unit_.values[t.where.symbol].role == ValueRole::kActivation &&
                    !backward.AnyAccesses(t.where.symbol);
           });
  }

  // Drops the result `id` of a node. Returns whether nothing else is left of it.
  bool Drop(Node& node, ValueId id) {
    unit_.values[id].producers.clear();
    for (Node& other : unit_.backward) {
      if (other.recomputing && Writes(*other.recomputing, id)) other.recomputing.reset();
    }
    if (!node.op.Is<RmsNormForward>() && !node.op.Is<LayerNormForward>()) return true;
    for (Op* op : {&node.op, node.from_sum ? &*node.from_sum : nullptr}) {
      if (op == nullptr) continue;
      if (auto* norm = op->As<RmsNormForward>()) norm->y = norm->weight_C = Tensor();
      if (auto* norm = op->As<LayerNormForward>()) norm->y = norm->weight_C = norm->bias_C = Tensor();
    }
    return false;
  }

  // Takes nodes out.
  void Remove(std::vector<Node>& nodes, const std::vector<bool>& removed, bool forward) {
    std::vector<Node> left;
    std::vector<int> places;  // By node.
    for (size_t node = 0; node < nodes.size(); ++node) {
      places.push_back(static_cast<int>(left.size()));
      if (!removed[node]) left.push_back(std::move(nodes[node]));
    }
    nodes = std::move(left);
    if (!forward) return;
    for (Value& value : unit_.values) {
      for (int& producer : value.producers) producer = places[producer];
    }
  }

  UnitGraph& unit_;
};

}  // namespace

void UseFloat8Sources(UnitGraph& unit) { SourceUser(unit).Run(); }

}  // namespace shale
