// Defines the functions of op.h, which visit every kind of op.
#include "kernels/ops.h"

#include "kernels/op.h"

namespace shale {

OpKinds::OpKinds(const OpKinds& other) = default;
OpKinds& OpKinds::operator=(const OpKinds& other) = default;
OpKinds::~OpKinds() = default;

template <class Kind>
requires IsOpKind<Kind> Op::Op(Kind op) : kinds_(new OpKinds(std::in_place_type<Kind>, std::move(op))) {}
template <class Kind>
const Kind* Op::As() const {
  return std::get_if<Kind>(kinds_.get());
}
#define SHALE_COMPILE(Kind) \
  template Op::Op(Kind op); \
  template const Kind* Op::As<Kind>() const;
SHALE_EACH_OP_KIND(SHALE_COMPILE)
#undef SHALE_COMPILE

Op::Op() = default;
Op::Op(const Op& other) : kinds_(other.kinds_ == nullptr ? nullptr : std::make_unique<OpKinds>(*other.kinds_)) {}
Op::Op(Op&& other) noexcept = default;
Op& Op::operator=(Op&& other) noexcept = default;
Op& Op::operator=(const Op& other) {
  if (kinds_ == nullptr || other.kinds_ == nullptr) return *this = Op(other);
  *kinds_ = *other.kinds_;  // Allocates no memory. The executor relies on that.
  return *this;
}
Op::~Op() = default;

void VisitOperands(const Op& op, absl::FunctionRef<void(absl::string_view, const Tensor&, Access)> visitor) {
  std::visit([&](const auto& o) { std::decay_t<decltype(o)>::Visit(o, visitor); }, op.kinds());
}

void VisitOperands(Op& op, absl::FunctionRef<void(absl::string_view, Tensor&, Access)> visitor) {
  std::visit([&](auto& o) { std::decay_t<decltype(o)>::Visit(o, visitor); }, op.kinds());
}

void SetAccumulate(Op& op, bool accumulate) {
  std::visit(
      [&](auto& o) {
        if constexpr (requires { o.accumulate; }) o.accumulate = accumulate;
      },
      op.kinds());
}

void MakeFirst(Op& op) {
  SetAccumulate(op, false);
  if (MatMul* matmul = op.As<MatMul>()) matmul->b_is_packed = false;
}

const std::vector<ElementRange>* WrittenRanges(const Op& op) {
  const auto* zero = op.As<ZeroRanges>();
  return zero == nullptr ? nullptr : zero->ranges.get();
}

void SetShard(Op& op, int64_t index) {
  std::visit(
      [&](auto& o) {
        if constexpr (requires { o.shard_stride; }) o.shard_begin = index * o.shard_stride;
      },
      op.kinds());
}

bool UsesLibrary(const Op& op) { return op.Is<MatMul>() || op.Is<AttentionForward>() || op.Is<AttentionBackward>(); }

absl::string_view NameOf(const Op& op) {
  return std::visit(
      [](const auto& o) -> absl::string_view {
        if constexpr (requires { o.name(); }) {
          return o.name();
        } else {
          return std::decay_t<decltype(o)>::kName;
        }
      },
      op.kinds());
}

}  // namespace shale
