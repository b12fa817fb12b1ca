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

// Expands to X(Item, name, dtype, shape, per_micro_batch, to_host) for each item: whether it belongs to the
// instruction's micro-batch, and not to the whole run of the program; and whether it goes from the device to the host.
// On the host they lie in this order.
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
#define SHALE_EACH_STEP_ITEM(X)                                       \
  X(kInputs, "inputs", kInt32, kTokens, true, false)                  \
  X(kTargets, "targets", kInt32, kTokens, true, false)                \
  X(kFeatures, "features", kFloat32, kColumns, true, false)           \
  X(kTargetValues, "target_values", kFloat32, kColumns, true, false)  \
  X(kTargetWeights, "target_weights", kFloat32, kTokens, true, false) \
  X(kPositionIds, "position_ids", kInt32, kTokens, true, false)       \
  X(kBegins, "begins", kInt32, kSequences, false, false)              \
  X(kRows, "rows", kInt32, kSequences, true, false)                   \
  X(kHyper, "hyper", kFloat32, kVector, false, false)                 \
  X(kMicroBatch, "micro_batch", kInt64, kVector, true, false)         \
  X(kValidTokens, "valid_tokens", kInt64, kVector, false, false)      \
  X(kWeightTotal, "weight_total", kFloat64, kVector, false, false)    \
  X(kTotals, "totals", kFloat64, kVector, false, true)                \
  X(kGlobalTokens, "global_tokens", kInt64, kVector, false, true)     \
  X(kGlobalWeight, "global_weight", kFloat64, kVector, false, true)   \
  X(kLossScale, "loss_scaling", kFloat64, kVector, false, true)       \
  X(kLogits, "logits", kFloat32, kLogits, false, true)

enum class StepItem : uint8_t {
#define SHALE_ENUMERATE(Item, ...) Item,
  SHALE_EACH_STEP_ITEM(SHALE_ENUMERATE)
#undef SHALE_ENUMERATE
};

struct StepItemRow {
  absl::string_view name;
  DType dtype = DType::kFloat32;
  ItemShape shape = ItemShape::kVector;
  bool per_micro_batch = false;
  bool to_host = false;
};

// By StepItem.
inline constexpr StepItemRow kStepItemRows[] = {
#define SHALE_ROW(Item, name, dtype, shape, per_micro_batch, to_host) \
  {name, DType::dtype, ItemShape::shape, per_micro_batch, to_host},
    SHALE_EACH_STEP_ITEM(SHALE_ROW)
#undef SHALE_ROW
};
inline constexpr int kStepItems = static_cast<int>(sizeof(kStepItemRows) / sizeof(kStepItemRows[0]));

constexpr const StepItemRow& RowOf(StepItem item) { return kStepItemRows[static_cast<int>(item)]; }
inline absl::string_view ToString(StepItem item) {
  return static_cast<int>(item) < kStepItems ? RowOf(item).name : "?";
}
constexpr bool ToHost(StepItem item) { return RowOf(item).to_host; }

}  // namespace shale
