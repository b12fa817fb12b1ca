#include "engine/planner/patterns.h"

#include <string>
#include <vector>

#include "engine/text/pattern.h"
#include "kernels/check.h"

namespace shale {
namespace {

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
