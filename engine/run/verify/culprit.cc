#include <compare>
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/run/verify/checks.h"
#include "kernels/op.h"
#include "kernels/ops/loss.h"

namespace shale {
namespace {

bool IsLoss(const Op& op) { return op.Is<CrossEntropy>() || op.Is<SquaredError>(); }

// The place of a node in the order of backward: units from the last to the first. The forward of a unit stands before
// its backward, because the loss, which is a forward node, writes the first gradient.
struct BackwardPosition {
  size_t unit = 0;  // 0 is the last unit of the model.
  size_t node = 0;  // Among the forward and then the backward nodes of the unit.
  auto operator<=>(const BackwardPosition&) const = default;
};

// The ops of a graph in the order of backward.
class BackwardOrder {
 public:
  explicit BackwardOrder(const ModelGraph& graph) {
    for (auto unit = graph.units.rbegin(); unit != graph.units.rend(); ++unit) {
      units_.push_back(&*unit);
      std::vector<const Node*>& nodes = nodes_.emplace_back();
      for (const Node& node : unit->forward) nodes.push_back(&node);
      for (const Node& node : unit->backward) nodes.push_back(&node);
    }
  }

  // Calls `visit` for every place, in order.
  void ForEach(absl::FunctionRef<void(BackwardPosition)> visit) const {
    for (BackwardPosition at; at.unit < nodes_.size(); ++at.unit) {
      for (at.node = 0; at.node < nodes_[at.unit].size(); ++at.node) visit(at);
    }
  }
  const Op& OpAt(BackwardPosition at) const { return nodes_[at.unit][at.node]->op; }
  std::string NameAt(BackwardPosition at) const {
    return absl::StrCat(NameOf(OpAt(at)), " of ", units_[at.unit]->name);
  }

  // Returns the parameters whose gradients an op writes.
  std::vector<ParameterId> Written(BackwardPosition at) const {
    std::vector<ParameterId> written;
    VisitValues(at, [&](ValueId id, Access access) {
      const Value& value = units_[at.unit]->values[id];
      if (access != Access::kRead && value.role == ValueRole::kParameterGradient) written.push_back(value.parameter);
    });
    return written;
  }
  // Returns the ops that last wrote the gradients that an op reads.
  std::vector<BackwardPosition> Sources(BackwardPosition at) const {
    std::vector<BackwardPosition> sources;
    VisitValues(at, [&](ValueId id, Access access) {
      if (access == Access::kWrite) return;
      const UnitGraph& unit = *units_[at.unit];
      const ValueRole role = unit.values[id].role;
      BackwardPosition writer = at;
      if (LastWriter(id, writer)) {
        // The loss turns logits, an activation, into their gradient.
        const bool gradient = role == ValueRole::kGradient || role == ValueRole::kOutputGradient;
        if (gradient || IsLoss(OpAt(writer))) sources.push_back(writer);
      } else if (role == ValueRole::kOutputGradient && at.unit > 0) {
        writer = {at.unit - 1, nodes_[at.unit - 1].size()};
        if (LastWriter(units_[at.unit - 1]->input_gradient, writer)) sources.push_back(writer);
      }
    });
    return sources;
  }

 private:
  void VisitValues(BackwardPosition at, absl::FunctionRef<void(ValueId, Access)> visit) const {
    VisitOperands(OpAt(at), [&](absl::string_view, const Tensor& tensor, Access access) {
      if (tensor.present()) visit(tensor.where.symbol, access);
    });
  }
  // Sets `before` to the last node of its unit before it that writes a value. Returns false if there is none.
  bool LastWriter(ValueId value, BackwardPosition& before) const {
    for (BackwardPosition at = before; at.node-- > 0;) {
      bool writes = false;
      VisitValues(at, [&](ValueId id, Access access) { writes |= id == value && access != Access::kRead; });
      if (!writes) continue;
      before = at;
      return true;
    }
    return false;
  }

  std::vector<const UnitGraph*> units_;
  std::vector<std::vector<const Node*>> nodes_;
};

}  // namespace

std::string WhereGradientsGoWrong(const ModelGraph& graph, const std::set<std::string>& right,
                                  const std::set<std::string>& wrong) {
  const BackwardOrder order(graph);
  std::set<BackwardPosition> sound;  // Ops whose results are right.
  BackwardPosition first;
  std::string parameter;
  order.ForEach([&](BackwardPosition at) {
    for (const ParameterId id : order.Written(at)) {
      const std::string& name = graph.parameters[id].name;
      if (right.contains(name)) {
        for (const BackwardPosition source : order.Sources(at)) sound.insert(source);
      }
      if (!wrong.contains(name) || !parameter.empty()) continue;
      first = at;
      parameter = name;
    }
  });
  if (parameter.empty()) return "no op of the backward writes a gradient of these parameters";

  std::set<BackwardPosition> suspects, open = {first};
  while (!open.empty()) {
    const BackwardPosition at = *open.begin();
    open.erase(open.begin());
    suspects.insert(at);
    for (const BackwardPosition source : order.Sources(at)) {
      if (!sound.contains(source) && !suspects.contains(source)) open.insert(source);
    }
  }
  std::vector<std::string> names;
  for (const BackwardPosition at : suspects) {
    if (names.empty() || names.back() != order.NameAt(at)) names.push_back(order.NameAt(at));
  }
  return absl::StrCat("backward goes wrong first at ", parameter, "; to blame is ", absl::StrJoin(names, " or "));
}

std::string LossOpOf(const ModelGraph& graph) {
  for (const UnitGraph& unit : graph.units) {
    for (const std::vector<Node>* nodes : {&unit.forward, &unit.backward}) {
      for (const Node& node : *nodes) {
        if (IsLoss(node.op)) return absl::StrCat(NameOf(node.op), " in unit ", unit.name);
      }
    }
  }
  return "the loss";
}

}  // namespace shale
