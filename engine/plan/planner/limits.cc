#include <algorithm>
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/planner/draft.h"
#include "engine/strings/pattern.h"
#include "kernels/check.h"

namespace shale {
namespace {

// An upper bound of the bytes of one parameter in all its forms: weight, master, moments, and several gathered copies
// and gradients.
constexpr double kBytesPerParameter = 64;

// Returns the rows of logits of one micro-batch.
double LogitRows(const Job& job) {
  const double sequences = static_cast<double>(job.batch.micro_batch);
  return LastTargetOnly(job.model) ? sequences : sequences * static_cast<double>(job.batch.sequence_length);
}

absl::Status Check(absl::string_view field, const std::vector<std::string>& patterns, absl::string_view what,
                   const std::vector<std::string>& names, const WorkLimits& limits) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    SHALE_RETURN_IF_ERROR(limits.Check());
    const std::string none = MatchesNone(field, i, patterns[i], what, names);
    if (!none.empty()) return absl::InvalidArgumentError(none);
  }
  return absl::OkStatus();
}

// Returns the names of the activations of the first `units` units.
std::vector<std::string> ActivationsOf(const ModelGraph& model, size_t units) {
  std::vector<std::string> names;
  for (size_t u = 0; u < units; ++u) {
    for (const Value& value : model.units[u].values) {
      if (value.role == ValueRole::kActivation) names.push_back(value.name);
    }
  }
  return names;
}

}  // namespace

double EstimatedInstructions(const Job& job) {
  constexpr double kAsComputed = 64, kQuantizing = 32, kRounding = 24, kPerChunk = 5;
  const double per_layer = kAsComputed + (job.precision.matmuls == MatMulPrecision::kFloat8 ? kQuantizing : 0) +
                           (job.precision.reduce == ReducePrecision::kBFloat16 ? kRounding : 0);
  return per_layer * static_cast<double>(Layers(job.model)) +
         kPerChunk * std::ceil(LogitRows(job) / static_cast<double>(LossChunkTokens(job)));
}

absl::Status CheckGraphSize(const Job& job, const WorkLimits& limits) {
  const double vocabulary = static_cast<double>(Vocabulary(job.model));
  // A custom model may have none: one that reads features and predicts values. Its builder checks the shapes.
  if (vocabulary < 1 && !std::holds_alternative<CustomModel>(job.model)) {
    std::vector<std::string> fields;
    ForEachModelInFiles([&](const auto& kind) { fields.push_back(absl::StrCat("model.", kind.kName, ".vocabulary")); });
    return absl::InvalidArgumentError(absl::StrCat("the vocabulary is unknown: set ", absl::StrJoin(fields, " or "),
                                                   ", or give data.path, which determines it"));
  }
  const double tokens = static_cast<double>(job.batch.micro_batch) * static_cast<double>(job.batch.sequence_length);
  const double rows = LogitRows(job);
  const double chunk = static_cast<double>(LossChunkTokens(job));
  const double bytes = 8 * std::max(tokens * WidestRow(job.model), std::min(rows, chunk) * vocabulary);
  if (bytes > kLargestPlanBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("one tensor of one micro-batch would have %.2g bytes; make batch.micro_batch (%d), "
                        "batch.sequence_length (%d) or the model smaller",
                        bytes, job.batch.micro_batch, job.batch.sequence_length));
  }
  const double instructions = EstimatedInstructions(job);
  if (instructions > limits.instructions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the step would have about %.0f instructions, at most %.0f are planned; make "
                        "memory.loss_chunk_tokens (%d) larger for %.0f rows of logits, or layers (%d) fewer",
                        instructions, limits.instructions, LossChunkTokens(job), rows, Layers(job.model)));
  }
  return absl::OkStatus();
}

absl::Status CheckProgramSize(const ModelGraph& graph, const StepOptions& options) {
  double bytes = 0;
  for (const UnitGraph& unit : graph.units) {
    for (const Value& value : unit.values) {
      const double elements = value.role == ValueRole::kParameter ? 0 : static_cast<double>(value.tensor.elements());
      bytes += elements * static_cast<double>(SizeOf(value.tensor.dtype));
    }
  }
  // The factor 2 counts the values of forward and those of backward. LAYERED keeps them for every micro-batch.
  const bool layered = graph.mode == GraphMode::kTraining && options.accumulation == Accumulation::kLayered;
  bytes *= 2 * (layered ? static_cast<double>(options.micro_batches) : 1.0);
  for (const Parameter& parameter : graph.parameters) {
    double elements = kBytesPerParameter;
    for (int64_t d : parameter.shape) elements *= static_cast<double>(d);
    bytes += elements;
  }
  if (bytes <= kLargestPlanBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "accumulation %s with %d micro-batches could need %.2g bytes on one rank, more than any machine has; make "
      "batch.micro_batch, batch.sequence_length or the model smaller, or take another accumulation",
      std::string(ToString(options.accumulation)), options.micro_batches, bytes));
}

double LeastLayeredBytes(const ModelGraph& graph, const StepOptions& options) {
  const ActivationOptions& activations = options.activations;
  if (!activations.offload.empty() || activations.segment_blocks != 1) return 0;
  const bool keeps_all = activations.preset == CheckpointingPreset::kNone && activations.patterns.empty();
  double bytes = 0;
  for (size_t u = 1; u < graph.units.size(); ++u) {
    const UnitGraph& unit = graph.units[u];
    const bool is_last = u + 1 == graph.units.size();
    std::vector<bool> found(unit.values.size(), false);
    for (const Node& node : unit.backward) {
      VisitOperands(node.op, [&](absl::string_view, const Tensor& t, Access access) {
        if (t.present() && access == Access::kRead) found[t.where.symbol] = true;
      });
    }
    for (ValueId id = 0; id < std::ssize(unit.values); ++id) {
      const bool is_input = id == unit.input && (found[id] || is_last);
      const bool is_kept =
          keeps_all && !is_last && found[id] && id != unit.output && unit.values[id].role == ValueRole::kActivation;
      if (is_input || is_kept) bytes += static_cast<double>(unit.values[id].tensor.extent_bytes());
    }
  }
  return bytes * static_cast<double>(options.micro_batches);
}

absl::Status CheckPatterns(const Job& job, const ModelGraph& model, const WorkLimits& limits) {
  std::vector<std::string> parameters;
  for (const Parameter& parameter : model.parameters) parameters.push_back(parameter.name);
  absl::Status status = Check("optimizer.no_decay", job.optimizer.no_decay, "parameter", parameters, limits);
  // Leaves out the last unit, whose backward follows its forward at once, so that nothing of it is recomputed.
  status.Update(Check("activation_checkpointing.recompute", job.activation_checkpointing.recompute,
                      "activation that could be recomputed", ActivationsOf(model, model.units.size() - 1), limits));
  status.Update(
      Check("memory.offload", job.memory.offload, "activation", ActivationsOf(model, model.units.size()), limits));
  return status;
}

}  // namespace shale
