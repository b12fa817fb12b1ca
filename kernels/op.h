// Op: one operation of a training step, of any kind.
//
// Code that compiles, plans, binds or reports ops without looking into them includes only this header, so it need not
// be compiled again when a kind changes. kernels/ops/ defines the kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/element_range.h"
#include "kernels/tensor.h"

namespace shale {

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

// The kinds of ops are the structs in kernels/ops/. They have a function Visit, which lists their operands.
template <class Kind>
concept IsOpKind = requires(Kind& op, void (*visitor)(absl::string_view, const Tensor&, Access)) {
  Kind::Visit(op, visitor);
};

struct OpKinds;  // A std::variant of all kinds (ops.h).

// Owns an op of one kind. To make an op and to look into it, include the header of its family (kernels/ops/). Only
// std::visit over kinds() needs all families (ops.h).
class Op {
 public:
  Op();  // Holds no op. It may only be assigned to and destroyed.
  template <class Kind>
  requires IsOpKind<Kind> Op(Kind op);  // Compiled for each kind in ops.cc, as is As.
  Op(const Op& other);
  Op(Op&& other) noexcept;
  Op& operator=(const Op& other);
  Op& operator=(Op&& other) noexcept;
  ~Op();

  // Return the op, or null if it is of another kind.
  template <class Kind>
  const Kind* As() const;
  template <class Kind>
  Kind* As() {
    return const_cast<Kind*>(std::as_const(*this).As<Kind>());
  }
  template <class Kind>
  bool Is() const {
    return As<Kind>() != nullptr;
  }
  // Return the op for std::visit.
  const OpKinds& kinds() const { return *kinds_; }
  OpKinds& kinds() { return *kinds_; }

 private:
  std::unique_ptr<OpKinds> kinds_;
};

// Calls visitor(name, tensor, access) for every operand of an op, including absent ones.
void VisitOperands(const Op& op, absl::FunctionRef<void(absl::string_view, const Tensor&, Access)> visitor);
void VisitOperands(Op& op, absl::FunctionRef<void(absl::string_view, Tensor&, Access)> visitor);

// What an op is, its struct declares by members (kernels/ops.h lists them). The functions below return what it
// declares.

// Sets `accumulate` of ops that have it, and leaves other ops alone.
void SetAccumulate(Op& op, bool accumulate);

// Turns an op that continues a series into the first op of the series: it overwrites its output instead of adding to
// it, and packs b instead of finding it packed.
void MakeFirst(Op& op);

// Returns the ranges that an op writes if it writes only these elements of its kReadWrite operand and reads none of it.
// Returns null for all other ops.
const std::vector<ElementRange>* WrittenRanges(const Op& op);

// Makes an op on one shard of a flat group work on shard `shard`, which begins at element shard x shard_stride. An op
// that counts ranks instead begins at rank x shard_stride, and one on a part of that begins part_begin elements later.
// Leaves other ops alone.
void SetShard(Op& op, int64_t shard, int64_t rank);

// Returns whether a library may compute an op. If one does, the backend loads the library and chooses an algorithm at
// the op's first launch.
bool UsesLibrary(const Op& op);

// Returns everything by which a library may choose an algorithm for an op, besides what its operands are, and a number
// for the op's kind before it. REQUIRES: UsesLibrary(op)
std::vector<int64_t> LibraryAttributes(const Op& op);

// Returns the name of an op: "MatMul".
absl::string_view NameOf(const Op& op);

// Returns the number of floating-point operations; a multiply-add counts as two. Counts matmuls and attention only:
// everything else is bound by memory, not arithmetic.
double FlopsOf(const Op& op);

// The bytes of operands that an op reads and writes.
struct OpTraffic {
  double bytes_read = 0;
  double bytes_written = 0;
};

// Returns the bytes that an op moves if it reads what it uses of each operand once and writes it once. Those of a
// kReadWrite operand count twice. Scratch does not count. If data choose the rows of an operand, as tokens do, returns
// the bytes of as many different rows as they may choose. `op` may be symbolic.
OpTraffic TrafficOf(const Op& op);

// Returns InvalidArgument for wrong shapes, dtypes, strides or aliasing. The message names the op and the operand, what
// was wanted and what was found. Does not read the tensors' memory, so symbolic ops can be checked while a program is
// compiled.
absl::Status Validate(const Op& op);

}  // namespace shale
