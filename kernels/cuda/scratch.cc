#include "kernels/cuda/scratch.h"

#include <iterator>
#include <type_traits>
#include <variant>

#include "kernels/cuda/work_division.h"
#include "kernels/ops.h"

namespace shale::cuda {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

template <class OpType>
int64_t NormScratch(const OpType& op, int sums) {
  const int64_t C = op.x.dim(-1);
  return PartialBytes(sums, NormPartialRows(op.x.dtype, op.rstd_R.elements(), C), C);
}

int64_t PartialMaximaBytes(const PackedRows& rows) { return rows.blocks() * static_cast<int64_t>(sizeof(uint32_t)); }

int64_t ReductionScratch(const Tensor& x) {
  return CeilDivide(x.elements(), kReductionChunk) * static_cast<int64_t>(sizeof(double));
}

}  // namespace

int64_t ScratchBytesOf(const RmsNormBackward& op) { return NormScratch(op, 1); }
int64_t ScratchBytesOf(const LayerNormBackward& op) { return NormScratch(op, 2); }

int64_t ScratchBytesOf(const BiasBackward& op) {
  const int64_t T = op.d_out_TN.dim(0), N = op.d_out_TN.dim(1);
  return PartialBytes(1, ColumnShape::Of(op.d_out_TN.dtype, T, N).chunks.count, N);
}

int64_t ScratchBytesOf(const EmbeddingBackward& op) {
  const int64_t tokens = op.tokens_BS.elements();
  return EmbeddingPlacesBytes(tokens) + PartialBytes(1, EmbeddingPartialRows(tokens), op.d_out_TC.dim(1));
}

int64_t RopeTableRows(const Rope& op) { return op.x_BSHD.dim(1) * (op.begins_B.present() ? op.x_BSHD.dim(0) : 1); }

int64_t ScratchBytesOf(const Rope& op) { return 2 * RopeTableRows(op) * (op.x_BSHD.dim(3) / 2) * kFloatBytes; }

int64_t RopeTableBytes(const Tensor& x_RC, const Float8Source& source) {
  return source.kind == Float8Source::Kind::kRope ? ScratchBytesOf(source.RopeOf(x_RC)) : 0;
}

int64_t ScratchBytesOf(const AttentionBackward& op) {
  // rowsum(d_out * out).
  return op.lse_BHS.elements() * kFloatBytes;
}

int64_t ScratchBytesOf(const Sum& op) { return ReductionScratch(op.x_N); }
int64_t ScratchBytesOf(const SumSquares& op) { return ReductionScratch(op.x_N); }

int64_t ScratchBytesOf(const Adafactor& op) {
  if (op.stage != Adafactor::Stage::kDirection) return 0;
  // The mean of each parameter's rows, and two sums for each chunk of a parameter.
  const int64_t chunks = CeilDivide(op.gradient_P.elements(), kFactorChunk);
  return (std::ssize(*op.parameters) + 2 * chunks) * static_cast<int64_t>(sizeof(double));
}

PackedRows PacksOfMaximum(const Tensor& x_RC, const Float8Source& source) {
  using Kind = Float8Source::Kind;
  const bool gates = source.kind == Kind::kGate || source.kind == Kind::kGateGradient;
  return PackedRows::Of(x_RC.dtype, x_RC.dim(0), gates ? x_RC.dim(1) / 2 : x_RC.dim(1),
                        source.kind == Kind::kMatrix && x_RC.contiguous());
}

// The table comes before the partial maxima.
int64_t ScratchBytesOf(const AbsMax& op) {
  return RopeTableBytes(op.x_RC, op.source) + PartialMaximaBytes(PacksOfMaximum(op.x_RC, op.source));
}
int64_t ScratchBytesOf(const QuantizeFloat8& op) { return RopeTableBytes(op.x_RC, op.source); }

int64_t ScratchBytesOf(const QuantizeShard& op) {
  if (op.stage != QuantizeShard::Stage::kMaxima) return 0;
  // No parameter has more elements in the shard than the shard.
  return PartialMaximaBytes(PackedRows::Of(op.weight_P.dtype, 1, op.weight_P.elements(), /*contiguous=*/true));
}

int64_t ScratchBytesWith(const MatMulBackend& matmuls, const AttentionBackend* attention, const Op& op) {
  return std::visit(
      [&]<class OpType>(const OpType& o) {
        if constexpr (std::is_same_v<OpType, MatMul>) {
          return matmuls.ScratchBytes(o);
        } else {
          if constexpr (AttentionOp<OpType>) {
            if (IsByLibrary(attention, o)) return attention->ScratchBytes(o);
          }
          return ScratchBytesOf(o);
        }
      },
      op.kinds());
}

int64_t AmpleScratchBytesWith(const MatMulBackend& matmuls, const AttentionBackend* attention, const Op& op,
                              int64_t most_bytes) {
  const auto* backward = op.As<AttentionBackward>();
  if (backward != nullptr && IsByLibrary(attention, *backward)) {
    return attention->AmpleScratchBytes(*backward, most_bytes);
  }
  return ScratchBytesWith(matmuls, attention, op);
}

}  // namespace shale::cuda
