#include <algorithm>
#include <string>
#include <utility>

#include "engine/compile/step/update.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/muon.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Emits the iterations of Newton and Schulz for the matrices of one flat group, one matrix after the other. All share
// the same four buffers. Borrows the references.
class NewtonSchulz {
 public:
  NewtonSchulz(const MuonRule& rule, const ShardLayout& layout, DType dtype, ProgramWriter& writer)
      : rule_(rule), writer_(writer) {
    int64_t elements = 0, side = 0;
    for (const ShardLayout::PlacedParameter& p : layout.parameters()) {
      SHALE_CHECK(p.shape.size() == 2) << p.name << " is no matrix";
      elements = std::max(elements, p.elements);
      side = std::max(side, std::min(p.shape[0], p.shape[1]));
    }
    other_ = Add("muon.other", dtype, elements);
    gram_ = Add("muon.gram", dtype, side * side);
    square_ = Add("muon.square", dtype, side * side);
    squares_ = writer.AddTensor("muon.norm", BufferCategory::kData, Tensor::Contiguous(DType::kFloat64, {1}));
  }

  // Makes a matrix nearly orthogonal, in place, and multiplies it by the factor on its learning rate.
  void Emit(const Tensor& matrix) const {
    const int64_t rows = matrix.dim(0), columns = matrix.dim(1), elements = matrix.elements();
    Tensor x = matrix, next = other_.Slice(0, 0, elements).Reshape({rows, columns});
    // An iteration goes from one of the two to the other, so an odd number of them begins in the other.
    if (rule_.steps % 2 != 0) std::swap(x, next);
    Compute(SumSquares{.x_N = matrix.Reshape({elements}), .total_1 = squares_});
    Compute(DivideByNorm{.x_N = matrix.Reshape({elements}),
                         .squares_1 = squares_,
                         .out_N = x.Reshape({elements}),
                         .epsilon = rule_.epsilon});
    for (int64_t i = 0; i < rule_.steps; ++i, std::swap(x, next)) {
      EmitIteration(x, next, i + 1 < rule_.steps ? 1 : rule_.RateFactor(rows, columns));
    }
  }

 private:
  // Emits next = factor (a X + b (X X^T) X + c (X X^T)^2 X) with X X^T or, if that is smaller, with X^T X on the other
  // side of X, which is the same.
  void EmitIteration(const Tensor& x, const Tensor& next, double factor) const {
    const bool tall = x.dim(0) > x.dim(1);
    const int64_t side = std::min(x.dim(0), x.dim(1));
    const Tensor gram = gram_.Slice(0, 0, side * side).Reshape({side, side});
    const Tensor square = square_.Slice(0, 0, side * side).Reshape({side, side});
    const auto scaled = [&](int i) { return static_cast<float>(factor * MuonRule::kCoefficients[i]); };
    Compute(MatMul{.a = x, .b = x, .c_MN = gram, .transpose_a = tall, .transpose_b = !tall});
    Compute(MatMul{.a = gram, .b = gram, .c_MN = square});
    Compute(MatrixPolynomial{
        .x_MM = gram, .y_MM = square, .out_MM = square, .a = scaled(0), .b = scaled(1), .c = scaled(2)});
    Compute(MatMul{.a = tall ? x : square, .b = tall ? square : x, .c_MN = next});
  }

  Tensor Add(const char* name, DType dtype, int64_t elements) const {
    return writer_.AddTensor(name, BufferCategory::kWorkspace, Tensor::Contiguous(dtype, {elements}));
  }
  template <class Kind>
  void Compute(Kind op) const {
    writer_.Emit({.stream = StreamId::kCompute, .phase = Phase::kUpdate}, Op(std::move(op)));
  }

  const MuonRule& rule_;
  ProgramWriter& writer_;
  // The other place of a matrix, its product with its transpose, the square of that, and the sum of its squares.
  Tensor other_, gram_, square_, squares_;
};

}  // namespace

void EmitOrthogonalDirection(const MuonRule& rule, const GroupState& g, const Tensor& momentum, Update& update,
                             ProgramWriter& writer) {
  const EmitContext compute = {.stream = StreamId::kCompute, .phase = Phase::kUpdate};
  const DType dtype = g.own_weight.dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
  const Tensor full = writer.AddTensor("muon.direction", BufferCategory::kWorkspace,
                                       Tensor::Contiguous(dtype, {g.placement.elements(Part::kFull)}));
  const Tensor own = g.placement.OwnedOf(full);
  const Tensor step =
      writer.AddTensor("muon.step", BufferCategory::kData, Tensor::Contiguous(DType::kFloat32, {kUpdateSize}));
  const bool rounds = momentum.dtype == DType::kBFloat16;
  writer.Emit(compute, Op(MuonDirection{.update_5 = update.update_5,
                                        .gradient_P = update.gradient_P,
                                        .momentum_P = momentum,
                                        .direction_P = own,
                                        .step_5 = step,
                                        .number_1 = rounds ? update.number_1 : Tensor(),
                                        .beta = rule.momentum,
                                        .nesterov = rule.nesterov,
                                        .shard_stride = update.shard_stride,
                                        .seed = update.seed,
                                        .group = update.group}));
  if (g.placement.placement().state == Part::kShard) {
    writer.Emit({.stream = StreamId::kGather, .phase = Phase::kUpdate},
                Collective{.kind = CollectiveKind::kAllGather, .local = own, .full = full});
  }
  const NewtonSchulz iterations(rule, g.layout(), dtype, writer);
  for (const ShardLayout::PlacedParameter& p : g.layout().parameters()) {
    iterations.Emit(full.Slice(0, p.offset_elements, p.elements).Reshape({p.shape[0], p.shape[1]}));
  }
  update.gradient_P = own;
  if (dtype != DType::kFloat32) {
    update.gradient_P = writer.AddTensor("muon.widened", BufferCategory::kGradientShards,
                                         Tensor::Contiguous(DType::kFloat32, {own.elements()}));
    writer.Emit(compute, Op(Copy{.from = own, .to = update.gradient_P}));
  }
  update.update_5 = step;
  if (!update.rounds_stochastically()) update.number_1 = {};
}

}  // namespace shale
