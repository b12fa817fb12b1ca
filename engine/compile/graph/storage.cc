// The forms of stored weights, which parameters take them, and the flat groups into which that divides parameters.
#include "engine/compile/graph/storage.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/graph_builder.h"
#include "kernels/nf4.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/quantized.h"

namespace shale {
namespace {

int64_t OneEach(int64_t weights) { return weights; }

Op WidenCopy(const Tensor& stored, const Tensor& used, int64_t) { return Copy{.from = stored, .to = used}; }

Op WidenNf4(const Tensor& stored, const Tensor& used, int64_t shards) {
  return Nf4Dequantize{.stored_RP = stored.Reshape({shards, stored.elements() / shards}),
                       .out_RN = used.Reshape({shards, used.elements() / shards})};
}

// By Storage.
constexpr StorageRow kRows[kStorages] = {
    {.name = "AS_COMPUTED", .dtype = [](DType used) { return used; }, .elements = OneEach},
    {.name = "BF16",
     .text = "in bf16",
     .dtype = [](DType) { return DType::kBFloat16; },
     .elements = OneEach,
     .widens_to = [](DType used) { return used == DType::kFloat32; },
     .widen = WidenCopy},
    // A row of bytes for each shard.
    {.name = "NF4",
     .text = "matrices of blocks in NF4",
     .suffix = ".nf4",
     .matrices_only = true,
     .quantized = true,
     .block = kNf4GroupWeights,
     .dtype = [](DType) { return DType::kUInt8; },
     .elements = [](int64_t weights) { return Nf4Row{weights}.bytes(); },
     .widens_to = IsComputeDType,
     .widen = WidenNf4},
};

}  // namespace

const StorageRow& RowOf(Storage storage) { return kRows[static_cast<int>(storage)]; }

absl::string_view ToString(Storage storage) { return RowOf(storage).name; }

void GraphBuilder::DecideStorage() {
  const StorageRow& form = RowOf(options_.frozen_weights);
  if (form.widen == nullptr) return;
  const std::vector<bool> matrices = MatricesOfBlocks();
  for (size_t id = 0; id < matrices.size(); ++id) {
    Parameter& parameter = graph_.parameters[id];
    if (!parameter.frozen || (form.matrices_only && !matrices[id]) || form.dtype(parameter.dtype) == parameter.dtype) {
      continue;
    }
    parameter.storage = options_.frozen_weights;
    if (form.widens_to(parameter.dtype)) continue;
    Fail(absl::InvalidArgumentError(absl::StrCat(
        "frozen parameter ", parameter.name, " is used in ", ToString(parameter.dtype), ", and weights stored in ",
        form.name, " are not widened to that; use optimizer.frozen_weights AS_COMPUTED")));
  }
}

std::vector<bool> GraphBuilder::MatricesOfBlocks() const {
  std::vector<bool> matrices(graph_.parameters.size(), false), others(matrices.size(), false);
  for (const UnitGraph& unit : graph_.units) {
    for (const Node& node : unit.forward) {
      VisitOperands(node.op, [&](absl::string_view name, const Tensor& t, Access) {
        if (!t.present() || unit.values[t.where.symbol].role != ValueRole::kParameter) return;
        // In fp8 the weight is quantized first.
        const bool quantized = name == "x" && (node.op.Is<AbsMax>() || node.op.Is<QuantizeFloat8>());
        const bool multiplies = unit.layer >= 0 && (quantized || (node.op.Is<MatMul>() && name == "b"));
        (multiplies ? matrices : others)[unit.values[t.where.symbol].parameter] = true;
      });
    }
  }
  for (size_t id = 0; id < matrices.size(); ++id) matrices[id] = matrices[id] && !others[id];
  return matrices;
}

std::vector<bool> GraphBuilder::Float8Weights(std::vector<bool> weights) const {
  for (size_t id = 0; id < weights.size(); ++id) {
    const bool as_used = graph_.parameters[id].storage == Storage::kAsUsed;
    weights[id] = weights[id] && as_used && float8_weights_.count(static_cast<ParameterId>(id)) > 0;
  }
  return weights;
}

void GraphBuilder::SplitGroups() {
  std::vector<ParameterGroup> groups;
  const std::vector<bool> of_blocks = MatricesOfBlocks(), float8 = Float8Weights(of_blocks);
  const auto is_divided_matrix = [&](ParameterId id) {
    const Parameter& p = graph_.parameters[id];
    const std::vector<int>& divided = options_.divided_groups;
    return of_blocks[id] && p.shape.size() == 2 && !p.frozen &&
           std::find(divided.begin(), divided.end(), p.optimizer_group) != divided.end();
  };
  const auto add = [&](const ParameterGroup& whole, ParameterGroup part) {
    part.name =
        absl::StrCat(whole.name, part.frozen ? ".frozen" : "", RowOf(part.storage).suffix, part.float8 ? ".fp8" : "");
    if (part.dtype != options_.compute_dtype) absl::StrAppend(&part.name, ".", ToString(part.dtype));
    if (part.optimizer_group >= 0) absl::StrAppend(&part.name, ".groups[", part.optimizer_group, "]");
    if (part.block_matrices) absl::StrAppend(&part.name, ".matrices");
    for (const ParameterId id : whole.parameters) {
      const Parameter& p = graph_.parameters[id];
      if (p.dtype == part.dtype && p.frozen == part.frozen && p.storage == part.storage &&
          p.optimizer_group == part.optimizer_group && float8[id] == part.float8 &&
          is_divided_matrix(id) == part.block_matrices) {
        part.parameters.push_back(id);
      }
    }
    if (part.parameters.empty()) return;
    for (const ParameterId id : part.parameters) graph_.parameters[id].group = static_cast<GroupId>(groups.size());
    groups.push_back(std::move(part));
  };
  std::vector<DType> dtypes = {options_.compute_dtype};
  if (options_.compute_dtype != DType::kFloat32) dtypes.push_back(DType::kFloat32);
  for (const ParameterGroup& group : graph_.groups) {
    std::set<int> optimizer_groups;
    for (const ParameterId id : group.parameters) optimizer_groups.insert(graph_.parameters[id].optimizer_group);
    for (const DType dtype : dtypes) {
      for (const bool in_float8 : {false, true}) {
        for (const int optimizer_group : optimizer_groups) {
          for (const bool matrices : {false, true}) {
            add(group,
                {.dtype = dtype, .optimizer_group = optimizer_group, .block_matrices = matrices, .float8 = in_float8});
          }
        }
        for (int storage = 0; storage < kStorages; ++storage) {
          add(group, {.dtype = dtype, .frozen = true, .storage = static_cast<Storage>(storage), .float8 = in_float8});
        }
      }
    }
  }
  graph_.groups = std::move(groups);
}

}  // namespace shale
