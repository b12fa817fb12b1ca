// Helpers of the files that call oneDNN. Private to kernels/cpu.
#pragma once

#include <optional>

#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/onednn_matmuls.h"
#include "kernels/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace shale::cpu {

// Keeps oneDNN to SHALE_MAX_CPU_ISA. Has an effect only before oneDNN makes its first primitive.
inline void LimitOneDnn() {
  using Isa = dnnl::cpu_isa;
  const std::optional<InstructionSet> limit = InstructionSetLimit();
  if (!limit.has_value()) return;
  switch (*limit) {
    case InstructionSet::kSse4: dnnl::set_max_cpu_isa(Isa::sse41); break;
    case InstructionSet::kAvx2: dnnl::set_max_cpu_isa(Isa::avx2); break;
    case InstructionSet::kAvx512: dnnl::set_max_cpu_isa(Isa::avx512_core_vnni); break;
    case InstructionSet::kAvx512BFloat16: dnnl::set_max_cpu_isa(Isa::avx512_core_bf16); break;
    case InstructionSet::kAmx: dnnl::set_max_cpu_isa(Isa::avx512_core_amx); break;
  }
}

// The engine of the whole process. Never destroyed.
inline const dnnl::engine& OneDnnEngine() {
  static const dnnl::engine& engine = *[] {
    LimitOneDnn();
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
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
