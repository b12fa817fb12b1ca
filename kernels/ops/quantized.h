// Ops on weights that are stored in few bits. kernels/ops.h says what holds for all ops.
//
// R rows, N weights in a row, P bytes of a row
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// out = the weights of `stored` (kernels/nf4.h has the format of a row and the formula), rounded to out's dtype.
struct Nf4Dequantize {
  static constexpr absl::string_view kName = "Nf4Dequantize";
  Tensor stored_RP;  // u8, P = Nf4Row{N}.bytes()
  Tensor out_RN;     // act, N a multiple of kNf4GroupWeights
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("stored", op.stored_RP, Access::kRead);
    v("out", op.out_RN, Access::kWrite);
  }
};

}  // namespace shale
