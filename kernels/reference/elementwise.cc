#include <cstring>

#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/scalar_ops.h"

namespace shale::reference {

absl::Status Reference(const BiasBackward& op) {
  for (int64_t i = 0; i < op.d_bias_N.dim(0); ++i) {
    double total = 0;
    for (int64_t t = 0; t < op.d_out_TN.dim(0); ++t) total += Get(op.d_out_TN, RowOffset(op.d_out_TN, t) + i);
    PutGradient(op.d_bias_N, i, total, op.accumulate);
  }
  return absl::OkStatus();
}

absl::Status Reference(const Sum& op) {
  double total = 0;
  for (int64_t i = 0; i < op.x_N.dim(0); ++i) total += Get(op.x_N, i);
  PutGradient(op.total_1, 0, total, op.accumulate);
  return absl::OkStatus();
}

absl::Status Reference(const SumSquares& op) {
  double total = 0;
  for (int64_t i = 0; i < op.x_N.dim(0); ++i) total += Get(op.x_N, i) * Get(op.x_N, i);
  PutGradient(op.total_1, 0, total, op.accumulate);
  return absl::OkStatus();
}

absl::Status Reference(const Copy& op) {
  if (op.from.dtype == op.to.dtype) {
    std::memcpy(op.to.data, op.from.data, static_cast<size_t>(op.from.extent_bytes()));
    return absl::OkStatus();
  }
  for (int64_t i = 0; i < op.from.elements(); ++i) Put(op.to, i, Get(op.from, i));
  return absl::OkStatus();
}

absl::Status Reference(const Add& op) {
  for (int64_t i = 0; i < op.out.elements(); ++i) Put(op.out, i, Get(op.a, i) + Get(op.b, i));
  return absl::OkStatus();
}

absl::Status Reference(const Accumulate& op) {
  if (!op.rounds()) {
    for (int64_t i = 0; i < op.x_N.dim(0); ++i) PutGradient(op.total_N, i, Get(op.x_N, i), op.accumulate);
    return absl::OkStatus();
  }
  const RoundingStream stream = RoundingOf(op);
  for (int64_t i = 0; i < op.x_N.dim(0); ++i) {
    // The sum of two fp32 numbers, rounded to fp64 and then to fp32, is their fp32 sum.
    const float sum = static_cast<float>(Get(op.x_N, i) + (op.accumulate ? Get(op.total_N, i) : 0));
    op.total_N.as<BFloat16>()[i] = RoundElement(stream, op.shard_begin + i, sum);
  }
  return absl::OkStatus();
}

absl::Status Reference(const SumRows& op) {
  for (int64_t i = 0; i < op.total_N.dim(0); ++i) {
    // Each sum of two fp32 numbers is rounded to fp64 and then to fp32, which gives their fp32 sum.
    float sum = static_cast<float>(Get(op.x_WN, i));
    for (int64_t w = 1; w < op.x_WN.dim(0); ++w) {
      sum = static_cast<float>(sum + Get(op.x_WN, w * op.x_WN.dim(1) + i));
    }
    if (op.accumulate) sum = static_cast<float>(sum + Get(op.total_N, i));
    op.total_N.as<float>()[i] = sum;
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
