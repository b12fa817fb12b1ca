#include "engine/program/program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace shale {

absl::string_view ToString(BufferCategory category) {
  switch (category) {
    case BufferCategory::kParameterShards: return "parameter shards";
    case BufferCategory::kFrozenParameters: return "frozen parameters";
    case BufferCategory::kMasterWeights: return "master weights";
    case BufferCategory::kOptimizerState: return "optimizer state";
    case BufferCategory::kGradientShards: return "gradient shards";
    case BufferCategory::kUnshardedGradients: return "unsharded gradients";
    case BufferCategory::kGatheredParameters: return "gathered parameters";
    case BufferCategory::kWidenedParameters: return "widened parameters";
    case BufferCategory::kActivations: return "activations kept";
    case BufferCategory::kActivationBoundaries: return "activation boundaries";
    case BufferCategory::kWorkspace: return "workspace of a unit";
    case BufferCategory::kLossWorkspace: return "loss workspace";
    case BufferCategory::kLibraryWorkspace: return "library workspace";
    case BufferCategory::kData: return "data";
    case BufferCategory::kSnapshot: return "checkpoint snapshot";
    case BufferCategory::kCache: return "key/value cache";
  }
  return "?";
}

absl::string_view ToString(StreamId stream) {
  switch (stream) {
    case StreamId::kCompute: return "compute";
    case StreamId::kGather: return "gather";
    case StreamId::kReduce: return "reduce";
    case StreamId::kCopy: return "copy";
    case StreamId::kHost: return "host";
  }
  return "?";
}

absl::string_view ToString(Phase phase) {
  switch (phase) {
    case Phase::kBegin: return "begin";
    case Phase::kForward: return "forward";
    case Phase::kRecompute: return "recompute";
    case Phase::kBackward: return "backward";
    case Phase::kReduce: return "reduce";
    case Phase::kUpdate: return "update";
    case Phase::kEnd: return "end";
  }
  return "?";
}

absl::string_view ToString(HostItem item) {
  switch (item) {
    case HostItem::kInputs: return "inputs";
    case HostItem::kTargets: return "targets";
    case HostItem::kFeatures: return "features";
    case HostItem::kTargetValues: return "target_values";
    case HostItem::kTargetWeights: return "target_weights";
    case HostItem::kPositionIds: return "position_ids";
    case HostItem::kBegins: return "begins";
    case HostItem::kRows: return "rows";
    case HostItem::kHyper: return "hyper";
    case HostItem::kMicroBatch: return "micro_batch";
    case HostItem::kValidTokens: return "valid_tokens";
    case HostItem::kWeightTotal: return "weight_total";
    case HostItem::kTotals: return "totals";
    case HostItem::kGlobalTokens: return "global_tokens";
    case HostItem::kGlobalWeight: return "global_weight";
    case HostItem::kLogits: return "logits";
  }
  return "?";
}

bool UsesStream(const StepProgram& program, StreamId stream) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [=](const Instruction& instruction) { return instruction.stream == stream; });
}

std::string NameOf(const Instruction& instruction) {
  if (const auto* op = std::get_if<Op>(&instruction.action)) return std::string(NameOf(*op));
  if (const auto* collective = std::get_if<Collective>(&instruction.action)) {
    return std::string(ToString(collective->kind));
  }
  if (const auto* transfer = std::get_if<Transfer>(&instruction.action)) return transfer->to_host ? "Offload" : "Fetch";
  const HostItem item = std::get<HostCopy>(instruction.action).item;
  return absl::StrCat(ToHost(item) ? "ToHost " : "ToDevice ", ToString(item));
}

}  // namespace shale
