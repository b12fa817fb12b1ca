// Adafactor. See kernels/ops/adafactor.h.
//
// Each pass is bound by memory, and works on the parameters of the shard one after the other. kSums reads the gradient
// twice: a block owns a row, and then a thread owns a column, so that neighboring threads read neighboring elements.
// No sum is made with atomics, so the same gradient gives the same bits. Scratch holds the mean of each parameter's
// rows, and the partial sums of the blocks of one parameter.
#include <algorithm>

#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/masters.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/element_range.h"
#include "kernels/integers.h"
#include "kernels/ops/adafactor.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOwnElements = kFactorChunk / kThreads;  // Of a thread of the kernel that sums over a parameter.

// The part of a parameter that lies in the shard.
struct OwnPart {
  int64_t begin, end;  // Elements of the parameter.
  int64_t at;          // The place in the shard of the parameter's element 0, if it were there.
  int64_t size() const { return end - begin; }
};

OwnPart OwnPartOf(const FactoredParameter& p, int64_t shard_begin, int64_t shard_elements) {
  const int64_t at = p.begin - shard_begin;
  const ElementRange own = Intersect({-at, shard_elements - at}, {0, p.elements()});
  return {own.begin, std::max(own.begin, own.end), at};
}

LaunchShape ShapeOf(int64_t elements, int64_t per_block = kThreads) {
  return {.grid = dim3(static_cast<unsigned>(CeilDivide(elements, per_block))), .block = dim3(kThreads)};
}

template <class T>
SHALE_KERNEL SHALE_BOUNDS(kThreads) FactorZeroKernel(Global<T> x, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x.Store(i, T(0));
}

SHALE_DEVICE double SquareOf(const Global<float>& gradient, double factor, int64_t i) {
  const double g = gradient.Load(i) * factor;
  return g * g + Adafactor::kGradientEpsilon;
}

SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorRowsKernel(Global<float> gradient, Global<float> update, Global<float> sums, OwnPart part, int64_t columns,
                     int64_t first_row, int64_t row_begin) {
  const double factor = update.Load(kUpdateGradientFactor);
  const int64_t row = first_row + blockIdx.x, begin = row * columns, end = begin + columns;
  const int64_t from = begin < part.begin ? part.begin : begin, to = end < part.end ? end : part.end;
  double sum = 0;
  for (int64_t e = from + threadIdx.x; e < to; e += kThreads) sum += SquareOf(gradient, factor, part.at + e);
  sum = SumOverBlock<kThreads>(sum);
  if (threadIdx.x == 0) sums.Store(row_begin + row, static_cast<float>(sum));
}

SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorColumnsKernel(Global<float> gradient, Global<float> update, Global<float> sums, OwnPart part, int64_t columns,
                        int64_t first_row, int64_t column_begin) {
  const double factor = update.Load(kUpdateGradientFactor);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= columns) return;
  double sum = 0;
  for (int64_t e = first_row * columns + column; e < part.end; e += columns) {
    if (e >= part.begin) sum += SquareOf(gradient, factor, part.at + e);
  }
  sums.Store(column_begin + column, static_cast<float>(sum));
}

// `moments` and `sums` are those of `n` rows or columns with `elements_of_one` elements, from number `begin` on.
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorMomentsKernel(Global<float> update, Global<int64_t> number, Global<float> sums, Global<float> moments,
                        int64_t begin, int64_t n, double elements_of_one) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n || update.Load(kUpdateSkip) != 0) return;
  const double decay = 1 - pow(static_cast<double>(number.Load(0)), Adafactor::kDecayRate);
  const double mean = sums.Load(begin + i) / elements_of_one;
  moments.Store(begin + i, static_cast<float>(decay * moments.Load(begin + i) + (1 - decay) * mean));
}

SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorMeanKernel(Global<float> moments, int64_t row_begin, int64_t rows, Global<double> means, int64_t q) {
  double sum = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kThreads) sum += moments.Load(row_begin + row);
  sum = SumOverBlock<kThreads>(sum);
  if (threadIdx.x == 0) means.Store(q, sum / static_cast<double>(rows));
}

// Each block writes its two sums to `partials`.
template <class Master>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorDirectionKernel(Master master, Global<float> gradient, Global<float> update, Global<float> moments,
                          Global<float> direction, Global<double> means, Global<double> partials, OwnPart part,
                          FactoredParameter p, int64_t q) {
  const double factor = update.Load(kUpdateGradientFactor);
  const double mean = p.row_begin < 0 ? 1 : means.Load(q);
  double squares = 0, parameter_squares = 0;
  for (int k = 0; k < kOwnElements; ++k) {
    const int64_t e = part.begin + blockIdx.x * kFactorChunk + k * kThreads + threadIdx.x;
    if (e >= part.end) break;
    const int64_t row = e / p.columns, i = part.at + e;
    double u =
        gradient.Load(i) * factor / sqrt(static_cast<double>(moments.Load(p.column_begin + e - row * p.columns)));
    if (p.row_begin >= 0) u /= sqrt(moments.Load(p.row_begin + row) / mean);
    const double value = master.template Load<1>(i).at[0];
    direction.Store(i, static_cast<float>(u));
    squares += u * u;
    parameter_squares += value * value;
  }
  squares = SumOverBlock<kThreads>(squares);
  __syncthreads();
  parameter_squares = SumOverBlock<kThreads>(parameter_squares);
  if (threadIdx.x != 0) return;
  partials.Store(2 * static_cast<int64_t>(blockIdx.x), squares);
  partials.Store(2 * static_cast<int64_t>(blockIdx.x) + 1, parameter_squares);
}

SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorTotalsKernel(Global<double> partials, int64_t blocks, Global<double> totals, int64_t q) {
  double squares = 0, parameter_squares = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) {
    squares += partials.Load(2 * i);
    parameter_squares += partials.Load(2 * i + 1);
  }
  squares = SumOverBlock<kThreads>(squares);
  __syncthreads();
  parameter_squares = SumOverBlock<kThreads>(parameter_squares);
  if (threadIdx.x != 0) return;
  totals.Store(2 * q, squares);
  totals.Store(2 * q + 1, parameter_squares);
}

struct ScaleSettings {
  double kept, weight_decay;  // 1 - beta1; 0: no decay.
  bool relative_step, scale_parameter;
};

template <class Master>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    FactorScaleKernel(Master master, Global<float> update, Global<int64_t> number, Global<double> totals,
                      Global<float> direction, OwnPart part, double elements, int64_t q, ScaleSettings settings) {
  const int64_t e = part.begin + static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= part.end) return;
  const double root = sqrt(totals.Load(2 * q) / elements), size = sqrt(totals.Load(2 * q + 1) / elements);
  const double step = 1 / sqrt(static_cast<double>(number.Load(0)));
  double rate = update.Load(kUpdateLearningRate);
  if (settings.relative_step) rate *= step < Adafactor::kRelativeStep ? step : Adafactor::kRelativeStep;
  if (settings.scale_parameter) rate *= size > Adafactor::kParameterEpsilon ? size : Adafactor::kParameterEpsilon;
  double scaled = settings.kept * rate / (root > 1 ? root : 1) * direction.Load(part.at + e);
  if (settings.weight_decay != 0) {
    scaled += rate * settings.weight_decay * master.template Load<1>(part.at + e).at[0];
  }
  direction.Store(part.at + e, static_cast<float>(scaled));
}

SHALE_KERNEL SHALE_BOUNDS(1) FactorStepKernel(Global<float> update, Global<float> step) {
  for (int i = 0; i < kUpdateSize; ++i) step.Store(i, i == kUpdateSkip ? update.Load(kUpdateSkip) : 1.0f);
}

// Returns an update of the same masters, for WithMaster.
Update MastersOf(const Adafactor& op) {
  return {.weight_P = op.weight_P, .master_P = op.master_P, .low_P = op.low_P, .number_1 = op.number_1};
}

template <class T>
absl::Status Zero(const Tensor& t, const char* name, StreamHandle stream) {
  if (t.elements() == 0) return absl::OkStatus();
  return Launch("Adafactor", FactorZeroKernel<T>, ShapeOf(t.elements()), stream, Whole<T>(t, name), t.elements());
}

absl::Status Sums(const Adafactor& op, StreamHandle stream) {
  SHALE_RETURN_IF_ERROR(Zero<float>(op.sums, "sums", stream));
  const Global<float> gradient = Whole<float>(op.gradient_P, "gradient"), update = Whole<float>(op.update_5, "update"),
                      sums = Whole<float>(op.sums, "sums");
  for (const FactoredParameter& p : *op.parameters) {
    const OwnPart part = OwnPartOf(p, op.shard_begin, op.gradient_P.elements());
    if (part.size() == 0) continue;
    const int64_t first = part.begin / p.columns, rows = CeilDivide(part.end, p.columns) - first;
    if (p.row_begin >= 0) {
      SHALE_RETURN_IF_ERROR(Launch("Adafactor", FactorRowsKernel, ShapeOf(rows, 1), stream, gradient, update, sums,
                                   part, p.columns, first, p.row_begin));
    }
    SHALE_RETURN_IF_ERROR(Launch("Adafactor", FactorColumnsKernel, ShapeOf(p.columns), stream, gradient, update, sums,
                                 part, p.columns, first, p.column_begin));
  }
  return absl::OkStatus();
}

absl::Status Moments(const Adafactor& op, StreamHandle stream) {
  const ElementRange shard = {op.shard_begin, op.shard_begin + op.moments.elements()};
  const auto run = [&](ElementRange factors, int64_t elements_of_one) -> absl::Status {
    const ElementRange own = Intersect(shard, factors);
    if (own.begin >= own.end) return absl::OkStatus();
    return Launch("Adafactor", FactorMomentsKernel, ShapeOf(own.end - own.begin), stream,
                  Whole<float>(op.update_5, "update"), Whole<int64_t>(op.number_1, "number"),
                  Whole<float>(op.sums, "sums"), Whole<float>(op.moments, "moments"), own.begin - shard.begin,
                  own.end - own.begin, static_cast<double>(elements_of_one));
  };
  for (const FactoredParameter& p : *op.parameters) {
    if (p.row_begin >= 0) SHALE_RETURN_IF_ERROR(run({p.row_begin, p.row_begin + p.rows}, p.columns));
    SHALE_RETURN_IF_ERROR(run({p.column_begin, p.column_begin + p.columns}, p.rows));
  }
  return absl::OkStatus();
}

absl::Status Direction(const Adafactor& op, Scratch scratch, StreamHandle stream) {
  SHALE_RETURN_IF_ERROR(Zero<float>(op.direction_P, "direction", stream));
  SHALE_RETURN_IF_ERROR(Zero<double>(op.totals_Q2, "totals", stream));
  const int64_t count = std::ssize(*op.parameters);
  auto* const doubles = reinterpret_cast<double*>(scratch.data);
  const Global<double> means(doubles, count, "means");
  return WithMaster(MastersOf(op), [&](const auto& master) -> absl::Status {
    using Master = std::decay_t<decltype(master)>;
    for (int64_t q = 0; q < count; ++q) {
      const FactoredParameter& p = (*op.parameters)[q];
      const OwnPart part = OwnPartOf(p, op.shard_begin, op.gradient_P.elements());
      if (part.size() == 0) continue;
      const Global<float> moments = Whole<float>(op.moments, "moments");
      if (p.row_begin >= 0) {
        SHALE_RETURN_IF_ERROR(
            Launch("Adafactor", FactorMeanKernel, ShapeOf(1), stream, moments, p.row_begin, p.rows, means, q));
      }
      const int64_t blocks = CeilDivide(part.size(), kFactorChunk);
      const Global<double> partials(doubles + count, 2 * blocks, "partials");
      SHALE_RETURN_IF_ERROR(Launch("Adafactor", FactorDirectionKernel<Master>, ShapeOf(part.size(), kFactorChunk),
                                   stream, master, Whole<float>(op.gradient_P, "gradient"),
                                   Whole<float>(op.update_5, "update"), moments,
                                   Whole<float>(op.direction_P, "direction"), means, partials, part, p, q));
      SHALE_RETURN_IF_ERROR(Launch("Adafactor", FactorTotalsKernel, ShapeOf(1), stream, partials, blocks,
                                   Whole<double>(op.totals_Q2, "totals"), q));
    }
    return absl::OkStatus();
  });
}

absl::Status Scale(const Adafactor& op, StreamHandle stream) {
  SHALE_RETURN_IF_ERROR(Launch("Adafactor", FactorStepKernel, {.grid = dim3(1), .block = dim3(1)}, stream,
                               Whole<float>(op.update_5, "update"), Whole<float>(op.step_5, "step")));
  return WithMaster(MastersOf(op), [&](const auto& master) -> absl::Status {
    using Master = std::decay_t<decltype(master)>;
    for (int64_t q = 0; q < std::ssize(*op.parameters); ++q) {
      const FactoredParameter& p = (*op.parameters)[q];
      const OwnPart part = OwnPartOf(p, op.shard_begin, op.direction_P.elements());
      if (part.size() == 0) continue;
      const ScaleSettings settings = {.kept = 1 - static_cast<double>(op.beta1),
                                      .weight_decay = p.decays ? op.weight_decay : 0.0f,
                                      .relative_step = op.relative_step,
                                      .scale_parameter = op.scale_parameter};
      SHALE_RETURN_IF_ERROR(Launch("Adafactor", FactorScaleKernel<Master>, ShapeOf(part.size()), stream, master,
                                   Whole<float>(op.update_5, "update"), Whole<int64_t>(op.number_1, "number"),
                                   Whole<double>(op.totals_Q2, "totals"), Whole<float>(op.direction_P, "direction"),
                                   part, static_cast<double>(p.elements()), q, settings));
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status Run(const Adafactor& op, Scratch scratch, StreamHandle stream) {
  switch (op.stage) {
    case Adafactor::Stage::kSums: return Sums(op, stream);
    case Adafactor::Stage::kMoments: return Moments(op, stream);
    case Adafactor::Stage::kDirection: return Direction(op, scratch, stream);
    case Adafactor::Stage::kScale: return Scale(op, stream);
  }
  return absl::OkStatus();
}

}  // namespace shale::cuda
