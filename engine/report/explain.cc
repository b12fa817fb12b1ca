#include "engine/report/explain.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/report/alternatives.h"
#include "engine/report/explain_sections.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Machine& machine,
                                        const WorkLimits& limits) {
  SHALE_ASSIGN_OR_RETURN(const Alternatives a, Alternatives::Create(job, plan, machine, limits));
  using Text = absl::StatusOr<std::string>;
  const std::pair<const char*, std::function<Text()>> sections[] = {
      {"where bytes go", [&]() -> Text { return ExplainWhereBytesGo(a); }},
      {"attention", [&]() -> Text { return ExplainAttention(a); }},
      {"micro-batches", [&] { return ExplainMicroBatches(a); }},
      {"one piece", [&]() -> Text { return ExplainOnePiece(a); }},
      {"headroom", [&] { return ExplainHeadroom(a); }},
      {"learning rate", [&] { return ExplainLearningRate(job); }},
      {"packing", [&]() -> Text { return ExplainPacking(job); }},
      {"mix", [&]() -> Text { return ExplainMix(job); }},
      {"target weights", [&]() -> Text { return ExplainTargetWeights(job); }},
      {"state", [&]() -> Text { return ExplainState(a); }},
      {"update", [&]() -> Text { return ExplainUpdate(a); }},
      {"activation checkpointing", [&] { return ExplainCheckpointing(a); }},
      {"offload", [&] { return ExplainOffload(a); }},
      {"offload of state", [&] { return ExplainStateOffload(a); }},
      {"no_sync", [&]() -> Text { return ExplainNoSync(a); }},
      {"strategies", [&]() -> Text { return ExplainStrategies(a); }}};
  std::string text;
  std::vector<std::string> left_out;
  for (const auto& [name, explain] : sections) {
    const Text section = limits.Check().ok() ? explain() : Text("");
    // A section that was under way took alternatives that could not be compiled in time for ones that cannot be at all.
    if (const absl::Status over = limits.Check(); absl::IsDeadlineExceeded(over)) {
      left_out.push_back(name);
    } else {
      SHALE_RETURN_IF_ERROR(over);
      SHALE_RETURN_IF_ERROR(section.status());
      text += *section;
    }
  }
  if (left_out.empty()) return text;
  return absl::StrCat(text, "Left out, because the time for planning is over: ", absl::StrJoin(left_out, ", "), ".\n");
}

}  // namespace shale
