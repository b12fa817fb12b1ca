// Defines the functions of ops.h that visit every kind of op. They are not inline, because most sources include ops.h
// and each std::visit over 27 kinds is slow to compile.
#include "kernels/ops.h"

namespace shale {

Op::Op() = default;
Op::Op(const Op& other) = default;
Op::Op(Op&& other) noexcept = default;
Op& Op::operator=(const Op& other) = default;
Op& Op::operator=(Op&& other) noexcept = default;
Op::~Op() = default;

void VisitOperands(const Op& op, absl::FunctionRef<void(absl::string_view, const Tensor&, Access)> visitor) {
  std::visit([&](const auto& o) { std::decay_t<decltype(o)>::Visit(o, visitor); }, op);
}

void VisitOperands(Op& op, absl::FunctionRef<void(absl::string_view, Tensor&, Access)> visitor) {
  std::visit([&](auto& o) { std::decay_t<decltype(o)>::Visit(o, visitor); }, op);
}

void SetAccumulate(Op& op, bool accumulate) {
  std::visit(
      [&](auto& o) {
        if constexpr (requires { o.accumulate; }) o.accumulate = accumulate;
      },
      op);
}

void MakeFirst(Op& op) {
  SetAccumulate(op, false);
  if (MatMul* matmul = std::get_if<MatMul>(&op)) matmul->b_is_packed = false;
}

const std::vector<ElementRange>* WrittenRanges(const Op& op) {
  const auto* zero = std::get_if<ZeroRanges>(&op);
  return zero == nullptr ? nullptr : zero->ranges.get();
}

void SetShard(Op& op, int64_t index) {
  std::visit(
      [&](auto& o) {
        if constexpr (requires { o.shard_stride; }) o.shard_begin = index * o.shard_stride;
      },
      op);
}

bool UsesLibrary(const Op& op) {
  return std::holds_alternative<MatMul>(op) || std::holds_alternative<AttentionForward>(op) ||
         std::holds_alternative<AttentionBackward>(op);
}

absl::string_view NameOf(const Op& op) {
  return std::visit(
      [](const auto& o) -> absl::string_view {
        if constexpr (requires { o.name(); }) {
          return o.name();
        } else {
          return std::decay_t<decltype(o)>::kName;
        }
      },
      op);
}

}  // namespace shale
