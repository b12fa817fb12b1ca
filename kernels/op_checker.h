// How Validate states what an op wants of its operands. Private to the checks of kernels/.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/ops.h"

namespace shale::internal {

// A size that operands share, such as C: unknown until the first operand shows it, then demanded of every other.
struct Dim {
  absl::string_view name;
  int64_t size = -1;
  int64_t minimum = 1;
};

enum class Layout : uint8_t {
  kContiguous,
  kDenseRows,  // The last dimension is dense, the others may be strided.
  kStrided,    // Every dimension may be strided.
};

// Collects the first thing that is wrong; every later question is then passed over. Lives within one Validate.
class OpChecker {
 public:
  explicit OpChecker(absl::string_view op) : op_(op) {}

  // `tensor` must be there, of the compute dtype (f32 or bf16, the same for all operands asked for like this).
  void Act(absl::string_view name, const Tensor& tensor, std::initializer_list<Dim*> dims,
           Layout layout = Layout::kContiguous);
  void Typed(absl::string_view name, const Tensor& tensor, DType dtype, std::initializer_list<Dim*> dims,
             Layout layout = Layout::kContiguous);
  // Of the compute dtype, or f32 whatever that is.
  void ActOrFloat(absl::string_view name, const Tensor& tensor, std::initializer_list<Dim*> dims,
                  Layout layout = Layout::kContiguous);

  // `message` continues "<op>: ".
  template <class... Parts>
  void Require(bool condition, const Parts&... message) {
    if (!condition) Fail(absl::StrCat(message...));
  }

  // Allows output `a` to be the very same view as operand `b`; any other overlap of an output stays refused.
  void MayBe(absl::string_view output, absl::string_view operand) { allowed_.emplace_back(output, operand); }

  // Refuses outputs that overlap other operands; call last.
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
  bool act_known_ = false;
  DType act_ = DType::kFloat32;
  std::vector<std::pair<absl::string_view, absl::string_view>> allowed_;
};

// Whether an element of `a` and one of `b` may lie on the same bytes. Exact for views of one row length (the columns of
// a fused matrix), else whenever the spans from first to last element meet.
bool Overlap(const Tensor& a, const Tensor& b);

// One check per op family; each continues with the shapes, dtypes and aliasing of its header comment in ops.h.
void Check(OpChecker& c, const EmbeddingForward& op);
void Check(OpChecker& c, const EmbeddingBackward& op);
void Check(OpChecker& c, const MatMul& op);
void Check(OpChecker& c, const BiasBackward& op);
void Check(OpChecker& c, const RmsNormForward& op);
void Check(OpChecker& c, const RmsNormBackward& op);
void Check(OpChecker& c, const LayerNormForward& op);
void Check(OpChecker& c, const LayerNormBackward& op);
void Check(OpChecker& c, const GroupNormForward& op);
void Check(OpChecker& c, const GroupNormBackward& op);
void Check(OpChecker& c, const Rope& op);
void Check(OpChecker& c, const AttentionForward& op);
void Check(OpChecker& c, const AttentionBackward& op);
void Check(OpChecker& c, const SwiGluForward& op);
void Check(OpChecker& c, const SwiGluBackward& op);
void Check(OpChecker& c, const GeluForward& op);
void Check(OpChecker& c, const GeluBackward& op);
void Check(OpChecker& c, const CrossEntropy& op);
void Check(OpChecker& c, const Sum& op);
void Check(OpChecker& c, const SumSquares& op);
void Check(OpChecker& c, const Copy& op);
void Check(OpChecker& c, const Add& op);
void Check(OpChecker& c, const Accumulate& op);
void Check(OpChecker& c, const ZeroRanges& op);
void Check(OpChecker& c, const LossScale& op);
void Check(OpChecker& c, const FlagNonFinite& op);
void Check(OpChecker& c, const PrepareUpdate& op);
void Check(OpChecker& c, const AdamW& op);

}  // namespace shale::internal
