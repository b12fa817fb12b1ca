// The facts of custom models (engine/compile/model/config.h).

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/storage.h"
#include "engine/compile/model/config.h"
#include "engine/compile/model/model.h"
#include "engine/strings/pattern.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Returns what `graph` lacks of a graph for `options`, or an empty string.
std::string Difference(const CustomModel& model, const GraphOptions& options, const ModelGraph& graph) {
  if (graph.mode != options.mode || graph.micro_batch != options.micro_batch ||
      graph.sequence_length != options.sequence_length || graph.vocabulary != options.vocabulary ||
      graph.cache != options.cache || graph.last_target_only != options.last_target_only) {
    return "its graph was built with other options than those that its function was given";
  }
  const bool computes = std::any_of(graph.parameters.begin(), graph.parameters.end(),
                                    [&](const Parameter& p) { return p.dtype == options.compute_dtype; });
  if (!computes && !graph.parameters.empty()) {
    const DType found = graph.parameters[0].dtype;
    return absl::StrCat("wanted parameters in ", ToString(options.compute_dtype),
                        ", the compute_dtype of the options that its function was given (precision.compute), and found "
                        "all in ",
                        ToString(found),
                        "; build the graph with these options, and add parameters without a dtype of their own where "
                        "the job's may be used",
                        found == DType::kFloat32 ? ", or set precision.compute FP32" : "");
  }
  for (const Parameter& parameter : graph.parameters) {
    if (parameter.frozen == (options.train_only.empty() || MatchesAny(options.train_only, parameter.name))) {
      return "its graph was built with other options than those that its function was given: it ignores train_only";
    }
    if (!parameter.frozen && parameter.optimizer_group != FirstMatch(options.optimizer_groups, parameter.name)) {
      return "its graph was built with other options than those that its function was given: it ignores "
             "optimizer_groups";
    }
    const bool as_used = parameter.storage == Storage::kAsUsed;
    const StorageRow& wanted = RowOf(options.frozen_weights);
    const bool ignored = parameter.frozen && !wanted.matrices_only && wanted.dtype(parameter.dtype) != parameter.dtype;
    if (as_used ? ignored : parameter.storage != options.frozen_weights) {
      return "its graph was built with other options than those that its function was given: it ignores "
             "frozen_weights";
    }
  }
  int64_t blocks = 0;
  for (const UnitGraph& unit : graph.units) blocks += unit.layer >= 0;
  if (blocks == model.layers) return "";
  return absl::StrCat("its graph has ", blocks, " blocks (units with an index), and the model says that it has ",
                      model.layers);
}

}  // namespace

std::string CustomModel::Description() const {
  return absl::StrCat("custom model ", name, " (", digest, "), ", Plural(layers, "block"),
                      vocabulary > 0 ? absl::StrCat(", vocabulary ", WithCommas(vocabulary)) : "");
}

bool CustomModel::operator==(const CustomModel& other) const {
  return name == other.name && digest == other.digest && layers == other.layers &&
         last_target_only == other.last_target_only && vocabulary == other.vocabulary;
}

absl::StatusOr<ModelGraph> BuildCustom(const CustomModel& model, GraphOptions options) {
  const std::string name = absl::StrCat("custom model ", model.name);
  if (!model.build) {
    return absl::FailedPreconditionError(
        absl::StrCat(name,
                     ": only a program that brings the model can build it; give it to the trainer, or to what plans "
                     "the job"));
  }
  options.vocabulary = model.vocabulary;
  options.last_target_only = model.last_target_only;
  absl::StatusOr<ModelGraph> graph = model.build(options);
  if (!graph.ok()) return absl::Status(graph.status().code(), absl::StrCat(name, ": ", graph.status().message()));
  if (const std::string difference = Difference(model, options, *graph); !difference.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", difference));
  }
  return graph;
}

}  // namespace shale
