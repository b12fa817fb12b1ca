// The names of all kinds of ops, for code that declares something for each of them. It need not be compiled again when
// a struct changes. kernels/ops/ defines the structs, by family.
#pragma once

// Expands to X(Kind) for each kind. OpKinds has them in this order.
#define SHALE_EACH_OP_KIND(X) \
  X(EmbeddingForward)         \
  X(EmbeddingBackward)        \
  X(MatMul)                   \
  X(BiasBackward)             \
  X(RmsNormForward)           \
  X(RmsNormBackward)          \
  X(LayerNormForward)         \
  X(LayerNormBackward)        \
  X(Rope)                     \
  X(AttentionForward)         \
  X(AttentionBackward)        \
  X(CachedAttention)          \
  X(SwiGluForward)            \
  X(SwiGluBackward)           \
  X(GeluForward)              \
  X(GeluBackward)             \
  X(CrossEntropy)             \
  X(SquaredError)             \
  X(Sum)                      \
  X(SumSquares)               \
  X(Copy)                     \
  X(Add)                      \
  X(Accumulate)               \
  X(SumRows)                  \
  X(ZeroRanges)               \
  X(Nf4Dequantize)            \
  X(AbsMax)                   \
  X(QuantizeFloat8)           \
  X(QuantizeShard)            \
  X(TransposeFloat8)          \
  X(MeanFactor)               \
  X(FlagNonFinite)            \
  X(CombineTotals)            \
  X(PrepareUpdate)            \
  X(RecordNorm)               \
  X(Adafactor)                \
  X(MuonDirection)            \
  X(DivideByNorm)             \
  X(MatrixPolynomial)         \
  X(Update)

namespace shale {

#define SHALE_DECLARE(Kind) struct Kind;
SHALE_EACH_OP_KIND(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale
