// The direction of an Adafactor update (Shazeer and Stern, 2018), as transformers.optimization.Adafactor computes it.
// kernels/ops.h says what holds for all ops.
//
// P elements of a rank's shard of a flat group, Q parameters of the group, F their factors, S a rank's shard of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// Where a parameter of a flat group and its factors lie. A matrix has a factor for each row and one for each column. A
// vector is a matrix of one row, whose columns have a factor each and whose row has none.
struct FactoredParameter {
  int64_t begin = 0;  // Its first element in the group.
  int64_t rows = 1, columns = 1;
  int64_t row_begin = -1;    // The factor of its first row among F. -1: a vector.
  int64_t column_begin = 0;  // The factor of its first column among F.
  bool decays = false;       // Whether its elements have weight decay.
  int64_t elements() const { return rows * columns; }
  bool operator==(const FactoredParameter&) const = default;
};

// One of four passes over a shard of a flat group. Between them, ranks that have shards of the group add `sums`, gather
// `moments` and add `totals`. With g the clipped gradient, n = rows x columns, t the number of the update and
// decay = 1 - t^-0.8:
//   kSums       sums = for each row and column the sum of g^2 + 1e-30 over its elements in the shard; 0 elsewhere
//   kMoments    moments = decay moments + (1 - decay) sums / (elements of the row or column)
//   kDirection  direction = g / sqrt(row / (mean of rows)) / sqrt(column), of a vector g / sqrt(column),
//               and 0 between parameters;
//               totals = for each parameter the sum of direction^2, and that of p^2
//   kScale      direction = (1 - beta1) lr / max(1, sqrt(totals[0] / n)) direction + lr weight_decay p
// where lr is the learning rate, with relative_step times min(0.01, 1 / sqrt(t)), and with scale_parameter times
// max(0.001, sqrt(totals[1] / n)), the root of the mean square of p. kScale also writes `step`, with which an SGD of
// momentum beta1 subtracts the direction: a rate and a gradient factor of 1, and whether the update is skipped.
// kMoments changes nothing if the update is skipped. Sums are fp64 and rounded once, to f32 in `sums`.
struct Adafactor {
  static constexpr absl::string_view kName = "Adafactor";
  enum class Stage : uint8_t { kSums, kMoments, kDirection, kScale };
  static constexpr double kGradientEpsilon = 1e-30, kParameterEpsilon = 1e-3, kDecayRate = -0.8, kRelativeStep = 1e-2;

  Stage stage = Stage::kSums;
  Tensor update_5;     // f32, from PrepareUpdate
  Tensor number_1;     // i64, of kMoments and kScale: the update's number
  Tensor gradient_P;   // f32, of kSums and kDirection
  Tensor weight_P;     // f32 or bf16, of kDirection and kScale. With master and low it gives p as in Update.
  Tensor master_P;     // f32, optional
  Tensor low_P;        // i16, optional
  Tensor sums;         // f32, [F] of kSums, [S] of kMoments
  Tensor moments;      // f32, [S] of kMoments, [F] of kDirection
  Tensor direction_P;  // f32, of kDirection and kScale
  Tensor totals_Q2;    // f64, of kDirection and kScale
  Tensor step_5;       // f32, of kScale
  std::shared_ptr<const std::vector<FactoredParameter>> parameters;  // In the order of their elements.
  int64_t shard_begin = 0;   // Of the shard, among the elements of the group; of kMoments among F.
  int64_t shard_stride = 0;  // As in Update.
  float beta1 = 0;
  float weight_decay = 0;  // 0 unless beta1 is 0.
  bool relative_step = true, scale_parameter = true;

  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    const Stage stage = op.stage;
    v("update", op.update_5, Access::kRead);
    v("number", op.number_1, Access::kRead);
    v("gradient", op.gradient_P, Access::kRead);
    v("weight", op.weight_P, Access::kRead);
    v("master", op.master_P, Access::kRead);
    v("low", op.low_P, Access::kRead);
    v("sums", op.sums, stage == Stage::kSums ? Access::kWrite : Access::kRead);
    v("moments", op.moments, stage == Stage::kMoments ? Access::kReadWrite : Access::kRead);
    v("direction", op.direction_P, stage == Stage::kDirection ? Access::kWrite : Access::kReadWrite);
    v("totals", op.totals_Q2, stage == Stage::kDirection ? Access::kWrite : Access::kRead);
    v("step", op.step_5, Access::kWrite);
  }
};

}  // namespace shale
