#include "kernels/cpu/onednn_matmuls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/one_openmp_thread.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/tiled_matmul.h"

namespace shale::cpu {
namespace {

absl::Status ErrorOf(const MatMulShape& s, absl::string_view what, int status) {
  return absl::InternalError(absl::StrCat("oneDNN: ", what, " (status ", status, ") for a matmul of M=", s.m,
                                          " N=", s.n, " K=", s.k, ", ", ToString(s.dtype), " to ", ToString(s.c_dtype),
                                          ", with strides of a (", s.a_stride_m, ", ", s.a_stride_k, "), of b (",
                                          s.b_stride_k, ", ", s.b_stride_n, "), of c (", s.c_stride_m, ", 1)"));
}
absl::Status ErrorOf(const MatMulShape& s, const dnnl::error& error) { return ErrorOf(s, error.what(), error.status); }

}  // namespace

OneDnnMatMuls::OneDnnMatMuls(std::shared_ptr<Team> team) : team_(std::move(team)) {
  // With AVX-512 alone, oneDNN imitates bf16 instructions, at a quarter of the speed of our own kernels.
  if (UsedInstructionSet() < InstructionSet::kAvx512BFloat16) return;
  const OneOpenMpThread one_thread;
  try {
    const MatMulShape shape{.m = 64,
                            .n = 64,
                            .k = 64,
                            .a_stride_m = 64,
                            .a_stride_k = 1,
                            .b_stride_k = 64,
                            .b_stride_n = 1,
                            .c_stride_m = 64,
                            .dtype = DType::kBFloat16};
    DescribeMatMul(shape, OperandB(shape));
    has_bfloat16_ = true;
  } catch (const dnnl::error&) {
    has_bfloat16_ = false;
  }
}

OneDnnMatMuls::~OneDnnMatMuls() = default;

absl::StatusOr<TiledMatMul*> OneDnnMatMuls::Find(const MatMulShape& shape) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = matmuls_.find(shape);
  if (found != matmuls_.end()) return found->second.get();
  const OneOpenMpThread one_thread;
  try {
    return (matmuls_[shape] = std::make_unique<TiledMatMul>(shape, team_->threads())).get();
  } catch (const dnnl::error& error) {
    return ErrorOf(shape, error);
  }
}

absl::StatusOr<int64_t> OneDnnMatMuls::ScratchBytes(const MatMulShape& shape, bool packed_elsewhere) {
  SHALE_ASSIGN_OR_RETURN(const TiledMatMul* matmul, Find(shape));
  return matmul->scratch_bytes(packed_elsewhere);
}

absl::StatusOr<int64_t> OneDnnMatMuls::PackedBytes(const MatMulShape& shape) {
  SHALE_ASSIGN_OR_RETURN(const TiledMatMul* matmul, Find(shape));
  return matmul->whole_packed_bytes();
}

absl::Status OneDnnMatMuls::Prepare(const MatMulShape& shape) {
  SHALE_ASSIGN_OR_RETURN(TiledMatMul * matmul, Find(shape));
  const OneOpenMpThread one_thread;
  try {
    matmul->Prepare();
  } catch (const dnnl::error& error) {
    return ErrorOf(shape, error);
  }
  return absl::OkStatus();
}

absl::Status OneDnnMatMuls::Run(const MatMulShape& shape, const MatMulOperands& operands) {
  SHALE_RETURN_IF_ERROR(Prepare(shape));
  SHALE_ASSIGN_OR_RETURN(TiledMatMul * matmul, Find(shape));
  const bool packed_elsewhere = operands.packed_b.data != nullptr;
  const int64_t packed_bytes = matmul->whole_packed_bytes();
  if (packed_elsewhere && (packed_bytes == 0 || operands.packed_b.size_bytes < packed_bytes)) {
    return absl::InternalError(absl::StrCat("a matmul of M=", shape.m, " N=", shape.n, " K=", shape.k, " needs ",
                                            packed_bytes, " bytes for packed b; got ", operands.packed_b.size_bytes));
  }
  const int64_t scratch_bytes = matmul->scratch_bytes(packed_elsewhere);
  if (operands.scratch.size_bytes < scratch_bytes) {
    return absl::InternalError(absl::StrCat("a matmul of M=", shape.m, " N=", shape.n, " K=", shape.k, " needs ",
                                            scratch_bytes, " bytes of scratch; got ", operands.scratch.size_bytes));
  }
  const dnnl_status_t status = matmul->Run(operands, *team_);
  if (status != dnnl_success) return ErrorOf(shape, "could not execute", status);
  return absl::OkStatus();
}

}  // namespace shale::cpu
