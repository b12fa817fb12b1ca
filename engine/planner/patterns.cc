#include "engine/planner/patterns.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/step/pattern.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::Status Check(absl::string_view field, const std::vector<std::string>& patterns, absl::string_view what,
                   const std::vector<std::string>& names, const WorkLimits& limits) {
  constexpr size_t kNamesShown = 12;
  for (size_t i = 0; i < patterns.size(); ++i) {
    SHALE_RETURN_IF_ERROR(limits.Check());
    const auto matches = [&](const std::string& name) { return MatchesPattern(patterns[i], name); };
    if (std::any_of(names.begin(), names.end(), matches)) continue;
    const auto shown = names.begin() + static_cast<int64_t>(std::min(names.size(), kNamesShown));
    return absl::InvalidArgumentError(
        absl::StrCat(field, "[", i, "]: \"", patterns[i], "\" matches no ", what, " of the model; found ",
                     names.empty() ? "none" : absl::StrJoin(names.begin(), shown, ", "),
                     names.size() > kNamesShown ? ", ..." : "", "; * matches any run of characters"));
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
