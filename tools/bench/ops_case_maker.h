// Makes the cases of the ops bench, inside of its package.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "tools/bench/ops_cases.h"

namespace shale {

// Makes the tensors of one case, without addresses.
class OpCaseMaker {
 public:
  OpCaseMaker(const OpSizes& sizes, DType act) : s(sizes), act(act) {}

  Tensor New(DType dtype, std::initializer_list<int64_t> shape) {
    Tensor t = Tensor::Contiguous(dtype, shape);
    t.where.symbol = static_cast<int32_t>(buffer_bytes_.size());
    buffer_bytes_.push_back(t.extent_bytes());
    return t;
  }
  Tensor Act(std::initializer_list<int64_t> shape) { return New(act, shape); }
  Tensor F32(std::initializer_list<int64_t> shape) { return New(DType::kFloat32, shape); }
  // Returns heads [first, first + count) of packed rows [T, heads, D] as [B, S, count, D].
  Tensor Heads(const Tensor& packed_TN, int64_t first, int64_t count) const {
    const int64_t d = s.head_width;
    return packed_TN.Slice(1, first * d, count * d).SplitLast(count, d).SplitFirst(s.tokens / s.sequence);
  }

  // Returns the case of an op whose tensors were made since the last one: "<name of the op> <variant>".
  OpCase Finish(const Op& op, absl::string_view variant, std::string sizes);

  const OpSizes s;
  const DType act;  // Of weights and activations.

 private:
  std::vector<int64_t> buffer_bytes_;
};

// Returns the shape as text, such as "[2048, 512]".
std::string ShapeText(const Tensor& t);

// Adds the ops on the flat vectors of a unit, every update rule among them (ops_cases_updates.cc).
void AddOpsOnFlatGroups(OpCaseMaker& m, std::vector<OpCase>& cases);

}  // namespace shale
