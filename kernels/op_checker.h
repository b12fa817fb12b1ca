// OpChecker: checks what an op requires of its operands and keeps the first error. Private to the implementation of
// Validate.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/op_kinds.h"

namespace shale {
struct RopeScaling;  // kernels/ops/rope.h
}  // namespace shale

namespace shale::internal {

// A size that several operands share, such as C. It is unknown (-1) until the first operand with that dimension sets
// it; every later operand must have the same size.
struct Dim {
  absl::string_view name;
  int64_t size = -1;
  int64_t minimum = 1;  // The smallest size that an operand may set.
};

// A dtype that several operands share: f32, bf16 or f16. It is unknown until the first operand that is checked with it
// sets it; every later one must have the same. An op whose operands may have several dtypes has a Float for each.
struct Float {
  bool is_known = false;
  DType dtype = DType::kFloat32;
};

enum class Layout : uint8_t {
  kContiguous,
  kDenseRows,  // The last dimension is dense, the others may be strided.
  kStrided,    // Every dimension may be strided.
};

// Keeps the first error and ignores every later check. Lives as long as one call of Validate.
class OpChecker {
 public:
  explicit OpChecker(absl::string_view op) : op_(op) {}

  // Requires `tensor` to be present, with dimensions `dims` and of the dtype `act`.
  void Act(absl::string_view name, const Tensor& tensor, Float& act, std::initializer_list<Dim*> dims,
           Layout layout = Layout::kContiguous);
  // The same, with a Float that all operands of the op share that are checked without one.
  void Act(absl::string_view name, const Tensor& tensor, std::initializer_list<Dim*> dims,
           Layout layout = Layout::kContiguous) {
    Act(name, tensor, act_, dims, layout);
  }
  // Requires `tensor` to be present, with dimensions `dims` and of dtype `dtype`.
  void Typed(absl::string_view name, const Tensor& tensor, DType dtype, std::initializer_list<Dim*> dims,
             Layout layout = Layout::kContiguous);
  // Like Act without a Float, but also accepts f32 whatever the others have.
  void ActOrFloat(absl::string_view name, const Tensor& tensor, std::initializer_list<Dim*> dims,
                  Layout layout = Layout::kContiguous);

  // Fails with "<op>: " followed by `message` unless `condition` holds.
  template <class... Parts>
  void Require(bool condition, const Parts&... message) {
    if (!condition) Fail(absl::StrCat(message...));
  }

  // Allows `output` to be the very same view as `operand`. Any other overlap of an output with another operand is
  // refused.
  void MayBe(absl::string_view output, absl::string_view operand) { allowed_.emplace_back(output, operand); }

  // Refuses outputs that overlap other operands, except as MayBe allows. Call last.
  template <class OpType>
  void NoOtherOverlaps(const OpType& op) {
    std::vector<Operand> operands;
    OpType::Visit(op, [&](absl::string_view name, const Tensor& tensor, Access access) {
      operands.push_back({name, &tensor, access});
    });
    CheckOverlaps(operands);
  }

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  struct Operand {
    absl::string_view name;
    const Tensor* tensor;
    Access access;
  };

  void Fail(absl::string_view message);
  void CheckShape(absl::string_view name, const Tensor& tensor, absl::string_view dtype, bool dtype_fits,
                  std::initializer_list<Dim*> dims, Layout layout);
  void CheckOverlaps(const std::vector<Operand>& operands);
  bool Allowed(absl::string_view output, absl::string_view operand) const;

  absl::string_view op_;
  absl::Status status_;
  Float act_;
  std::vector<std::pair<absl::string_view, absl::string_view>> allowed_;
};

// Returns whether an element of `a` and an element of `b` may lie on the same bytes. The answer is exact for views
// whose rows are the same distance apart (the columns of a fused matrix). For other views, returns whether their
// extents from first to last element overlap.
bool Overlap(const Tensor& a, const Tensor& b);

// Checks the angles by which Rope rotates heads, in each op that does.
void CheckAngles(OpChecker& c, int64_t head_width, double theta, const RopeScaling& scaling);

// Each Check checks the operands of one op against the shapes, dtypes and aliasing that the comment on its struct
// states.
#define SHALE_DECLARE(Kind) void Check(OpChecker& c, const Kind& op);
SHALE_EACH_OP_KIND(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale::internal
