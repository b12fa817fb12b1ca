// The data that a program copies between the host and the device.
//
// A new item is a row here, what produces it (StepInputs::Set, or a part of a sample: engine/files/data/sample_parts.h)
// and what uses it (GraphBuilder::UseData). What copies an item, finds a place for it on the host or reports it follows
// from its row.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/dtype.h"

namespace shale {

// B sequences of S tokens in a micro-batch, V vocabulary.
enum class ItemShape : uint8_t {
  kTokens,     // [B, S]
  kColumns,    // [B S, columns]; a model says how many columns it reads.
  kSequences,  // [B]
  kVector,     // [n]; what computes with it says how long it is.
  kLogits,     // [B, V], in the dtype of ModelGraph::logits.
};

// What an item belongs to: the instruction's micro-batch, or the whole run of the program.
enum class ItemScope : uint8_t { kMicroBatch, kStep };

enum class ItemDirection : uint8_t { kToDevice, kToHost };

// Expands to X(Item, name, dtype, shape, scope, direction) for each item. On the host they lie in this order.
//   kInputs         input tokens
//   kTargets        target tokens; a negative target is not counted
//   kFeatures       features in the place of tokens
//   kTargetValues   values in the place of target tokens
//   kTargetWeights  the weight of each target (TargetWeights)
//   kPositionIds    the position of each token in its document
//   kBegins         the position of each sequence's first token (graphs with a cache)
//   kRows           for each sequence, the row whose logits are wanted (kLogits graphs)
//   kHyper          the kHyper* values of kernels/step_scalars.h
//   kMicroBatch     the number of the micro-batch in the step
//   kValidTokens    this rank's count over all micro-batches of the step
//   kWeightTotal    this rank's sum of |weight| over all micro-batches of the step
//   kTotals         the kTotal* values of kernels/step_scalars.h
//   kGlobalTokens   valid tokens summed over all ranks
//   kGlobalWeight   the sum of |weight| over all ranks
//   kLossScale      the kLossScale* values of kernels/step_scalars.h for the next step
//   kLogits         the logits of these rows
#define SHALE_EACH_STEP_ITEM(X)                                                  \
  X(kInputs, "inputs", kInt32, kTokens, kMicroBatch, kToDevice)                  \
  X(kTargets, "targets", kInt32, kTokens, kMicroBatch, kToDevice)                \
  X(kFeatures, "features", kFloat32, kColumns, kMicroBatch, kToDevice)           \
  X(kTargetValues, "target_values", kFloat32, kColumns, kMicroBatch, kToDevice)  \
  X(kTargetWeights, "target_weights", kFloat32, kTokens, kMicroBatch, kToDevice) \
  X(kPositionIds, "position_ids", kInt32, kTokens, kMicroBatch, kToDevice)       \
  X(kBegins, "begins", kInt32, kSequences, kStep, kToDevice)                     \
  X(kRows, "rows", kInt32, kSequences, kMicroBatch, kToDevice)                   \
  X(kHyper, "hyper", kFloat32, kVector, kStep, kToDevice)                        \
  X(kMicroBatch, "micro_batch", kInt64, kVector, kMicroBatch, kToDevice)         \
  X(kValidTokens, "valid_tokens", kInt64, kVector, kStep, kToDevice)             \
  X(kWeightTotal, "weight_total", kFloat64, kVector, kStep, kToDevice)           \
  X(kTotals, "totals", kFloat64, kVector, kStep, kToHost)                        \
  X(kGlobalTokens, "global_tokens", kInt64, kVector, kStep, kToHost)             \
  X(kGlobalWeight, "global_weight", kFloat64, kVector, kStep, kToHost)           \
  X(kLossScale, "loss_scaling", kFloat64, kVector, kStep, kToHost)               \
  X(kLogits, "logits", kFloat32, kLogits, kStep, kToHost)

enum class StepItem : uint8_t {
#define SHALE_ENUMERATE(Item, ...) Item,
  SHALE_EACH_STEP_ITEM(SHALE_ENUMERATE)
#undef SHALE_ENUMERATE
};

struct StepItemRow {
  absl::string_view name;
  DType dtype = DType::kFloat32;
  ItemShape shape = ItemShape::kVector;
  ItemScope scope = ItemScope::kStep;
  ItemDirection direction = ItemDirection::kToDevice;
};

// By StepItem.
inline constexpr StepItemRow kStepItemRows[] = {
#define SHALE_ROW(Item, name, dtype, shape, scope, direction) \
  {name, DType::dtype, ItemShape::shape, ItemScope::scope, ItemDirection::direction},
    SHALE_EACH_STEP_ITEM(SHALE_ROW)
#undef SHALE_ROW
};
inline constexpr int kStepItems = static_cast<int>(sizeof(kStepItemRows) / sizeof(kStepItemRows[0]));

constexpr const StepItemRow& RowOf(StepItem item) { return kStepItemRows[static_cast<int>(item)]; }
inline absl::string_view ToString(StepItem item) {
  return static_cast<int>(item) < kStepItems ? RowOf(item).name : "?";
}
constexpr bool ToHost(StepItem item) { return RowOf(item).direction == ItemDirection::kToHost; }

}  // namespace shale
