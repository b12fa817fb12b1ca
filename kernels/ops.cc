// Defines the functions of op.h, which visit every kind of op.
#include "kernels/ops.h"

#include "kernels/check.h"
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
  std::visit(
      [&]<class Kind>(Kind& o) {
        if constexpr (requires { &Kind::MakeFirst; }) {
          o.MakeFirst();
        } else if constexpr (requires { o.accumulate; }) {
          o.accumulate = false;
        }
      },
      op.kinds());
}

const std::vector<ElementRange>* WrittenRanges(const Op& op) {
  return std::visit(
      []<class Kind>(const Kind& o) -> const std::vector<ElementRange>* {
        if constexpr (requires { &Kind::written_ranges; }) return o.written_ranges();
        return nullptr;
      },
      op.kinds());
}

void SetShard(Op& op, int64_t shard, int64_t rank) {
  std::visit(
      [&](auto& o) {
        if constexpr (requires { o.by_rank; }) {
          o.shard_begin = (o.by_rank ? rank : shard) * o.shard_stride + o.part_begin;
        } else if constexpr (requires { o.shard_stride; }) {
          o.shard_begin = shard * o.shard_stride;
        }
      },
      op.kinds());
}

bool UsesLibrary(const Op& op) {
  return std::visit(
      []<class Kind>(const Kind&) {
        return requires { &Kind::LibraryAttributes; };
      },
      op.kinds());
}

std::vector<int64_t> LibraryAttributes(const Op& op) {
  SHALE_CHECK(UsesLibrary(op)) << NameOf(op);
  std::vector<int64_t> all = {static_cast<int64_t>(op.kinds().index())};
  std::visit(
      [&]<class Kind>(const Kind& o) {
        if constexpr (requires { &Kind::LibraryAttributes; }) {
          const std::vector<int64_t> attributes = o.LibraryAttributes();
          all.insert(all.end(), attributes.begin(), attributes.end());
        }
      },
      op.kinds());
  return all;
}

double FlopsOf(const Op& op) {
  return std::visit(
      []<class Kind>(const Kind& o) -> double {
        if constexpr (requires { &Kind::flops; }) return o.flops();
        return 0;
      },
      op.kinds());
}

OpTraffic TrafficOf(const Op& op) {
  OpTraffic traffic;
  std::visit(
      [&]<class Kind>(const Kind& o) {
        const auto moved = [&](const Tensor& operand, Access access) {
          int64_t elements = operand.elements();
          if constexpr (requires { &Kind::ElementsMoved; }) elements = o.ElementsMoved(operand, access);
          return static_cast<double>(elements) * static_cast<double>(SizeOf(operand.dtype));
        };
        Kind::Visit(o, [&](absl::string_view, const Tensor& operand, Access access) {
          if (!operand.present()) return;
          if (access != Access::kWrite) traffic.bytes_read += moved(operand, Access::kRead);
          if (access != Access::kRead) traffic.bytes_written += moved(operand, Access::kWrite);
        });
      },
      op.kinds());
  return traffic;
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
      op.kinds());
}

}  // namespace shale
