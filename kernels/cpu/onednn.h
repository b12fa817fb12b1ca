// Helpers of the files that call oneDNN. Private to kernels/cpu.
#pragma once

#include "kernels/cpu/onednn_matmuls.h"
#include "kernels/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace shale::cpu {

// The engine of the whole process. Never destroyed.
inline const dnnl::engine& OneDnnEngine() {
  static const dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

inline dnnl::memory::data_type OneDnnType(DType dtype) {
  return dtype == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// Returns the description of operand b, with the strides of the shape or in one of oneDNN's formats.
inline dnnl::memory::desc OperandB(const MatMulShape& s) {
  return {{s.k, s.n}, OneDnnType(s.dtype), dnnl::memory::dims{s.b_stride_k, s.b_stride_n}};
}
inline dnnl::memory::desc OperandB(const MatMulShape& s, dnnl::memory::format_tag format) {
  return {{s.k, s.n}, OneDnnType(s.dtype), format};
}

}  // namespace shale::cpu
