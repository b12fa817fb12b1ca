// The operations ("ops") of a training step. An op is a struct: the comment gives its formula, the members its tensors
// with shape and dtype. Each family of ops has a header in kernels/ops/, which names its dimensions. A source includes
// the families that it uses. Only code that handles every kind includes this header, because it is compiled again
// whenever any kind changes, and code that does not look into an op includes only op.h.
//
// "act" is a dtype, f32, bf16 or f16, the same for all act tensors of an op; other ops may have another one. An op that
// takes tensors of several of these dtypes says so, and its Check (op_checker.h) says which go together. All arithmetic
// is fp32 or wider.
// If an op stores a value in bf16 or f16 and uses it again, it uses the rounded value, so that a recomputation yields
// the same bits. Unless noted, tensors are contiguous and outputs overlap no other operand. An absent tensor (rank 0)
// is an optional operand that was not given. Gradients of parameters are f32. If `accumulate` is set, an op adds to its
// output, else it overwrites it; formulas write both as (+)=.
//
// Visit calls visitor(name, tensor, access) for every operand, absent ones included, in a fixed order. Binding,
// validation, metering and dependency analysis are all built on it. An op declares what else it is by the members
// below. The text in brackets says what holds for an op without the member.
//   absl::string_view kName, or a function name()    required
//   bool accumulate                                  whether it adds to its output [false]
//   void MakeFirst()                                 see MakeFirst in op.h [sets accumulate = false]
//   int64_t shard_begin, shard_stride                SetShard sets shard_begin to a multiple of shard_stride [the op
//                                                    does not work on a shard]
//   bool by_rank, int64_t part_begin                 whether SetShard counts ranks in place of shards, and what it adds
//                                                    to that multiple [false, 0]
//   const std::vector<ElementRange>* written_ranges() const
//                                                    see WrittenRanges in op.h [null]
//   std::vector<int64_t> LibraryAttributes() const   what a library that computes the op asks for [no library does]
//   double flops() const                             see FlopsOf in op.h [0]
//   int64_t ElementsMoved(const Tensor& operand, Access access) const
//                                                    how many elements of an operand it reads (access kRead) or writes
//                                                    (kWrite), if Visit says that it does so [all]
// The Check of an op says whether it works in place (op_checker.h).
#pragma once

#include <utility>
#include <variant>

#include "kernels/op.h"
#include "kernels/op_kinds.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/adafactor.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/muon.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/quantized.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/scalars.h"
#include "kernels/ops/update.h"

namespace shale {
namespace internal {

// Ignores the first type, because SHALE_APPEND puts a comma before each kind.
template <class, class... Kinds>
using VariantOf = std::variant<Kinds...>;

#define SHALE_APPEND(Kind) , Kind
using KindVariant = VariantOf<void SHALE_EACH_OP_KIND(SHALE_APPEND)>;
#undef SHALE_APPEND

}  // namespace internal

// An op of one of the kinds of op_kinds.h. What is not inline is compiled only in ops.cc: how so many kinds are copied
// and destroyed is slow to compile.
struct OpKinds : internal::KindVariant {
  template <class Kind>
  explicit OpKinds(std::in_place_type_t<Kind> kind, Kind op) : variant(kind, std::move(op)) {}
  OpKinds(const OpKinds& other);
  OpKinds& operator=(const OpKinds& other);
  ~OpKinds();
};

}  // namespace shale
