// The matrices that become fp8, as kernels read them. float8_source-inl.h computes their rows.
#pragma once

#include "kernels/ops/float8.h"
#include "kernels/tensor.h"

namespace shale::cpu {

// A matrix that an op quantizes ([Note: sources of fp8] in kernels/ops/float8.h). Borrows the op's members.
struct SourceMatrix {
  const Tensor& x_RC;
  const Float8Source& source;
  const float* turns = nullptr;  // The table of kRope (rope_table.h).
  bool computes() const { return source.kind != Float8Source::Kind::kMatrix; }
};

}  // namespace shale::cpu
