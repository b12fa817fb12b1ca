#include "engine/run/train/step_contract.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

double ShareOf(const Prediction& prediction, Knowledge knowledge) {
  return prediction.known[static_cast<size_t>(knowledge)];
}

}  // namespace

StepContract::StepContract(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine)
    : prediction_(PredictStep(job, plan, machine)),
      between_steps_seconds_(machine.between_steps_seconds()),
      mesh_(plan.options.mesh),
      rates_(machine, StepFactsOf(job, plan, machine).ranks_on_host),
      covered_(CoveredShare(prediction_.known)) {}

double StepContract::SecondsOf(const Instruction& issued) {
  const Work work = WorkOf(issued, mesh_);
  const auto [found, added] = seconds_of_.try_emplace(WorkText(work));
  if (added) found->second = rates_.Of(work).seconds;
  return found->second;
}

std::string StepContract::Add(double seconds, const WorkTimes* traced) {
  if (++steps_ > 1) seconds_ += seconds;
  const double predicted = predicted_seconds();
  if (predicted == 0) return "";
  slow_steps_ = seconds > (1 + kSlower) * predicted ? slow_steps_ + 1 : 0;
  if (slow_steps_ != kSteps) return "";
  const std::string what = traced == nullptr ? "" : WhatIsSlower(*traced);
  return absl::StrFormat("for %d steps a step has taken more than %s, %.0f %% longer than the %s that were predicted%s",
                         kSteps, FormatSeconds((1 + kSlower) * predicted), 100 * kSlower, FormatSeconds(predicted),
                         what.empty() ? "" : absl::StrCat("; in the last one ", what));
}

std::string StepContract::WhatIsSlower(const WorkTimes& traced) const {
  struct Part {
    double seconds = 0, predicted = 0;
    double beyond() const { return seconds - predicted; }
  };
  std::map<std::string, Part> kinds;
  for (const auto& [text, samples] : traced.works()) {
    Part& part = kinds[absl::StrCat(samples.work.kind, " (stream ", ToString(samples.stream), ")")];
    const auto issues = static_cast<double>(samples.issues);
    part.seconds += issues * MeanOf(samples.seconds).mean;
    part.predicted += issues * rates_.Of(samples.work).seconds;
  }
  kinds["what lies between steps"] = {traced.between_steps_seconds(), between_steps_seconds_};
  std::vector<std::pair<std::string, Part>> rows(kinds.begin(), kinds.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.beyond() > b.second.beyond(); });
  constexpr size_t kMost = 3;
  constexpr double kLeast = 0.02;  // Of a step: less explains nothing.
  std::vector<std::string> lines;
  for (const auto& [name, part] : rows) {
    if (lines.size() == kMost || part.beyond() < kLeast * prediction_.step_seconds) break;
    lines.push_back(
        absl::StrCat(name, " took ", FormatSeconds(part.seconds), " instead of ", FormatSeconds(part.predicted)));
  }
  return absl::StrJoin(lines, ", ");
}

std::string StepContract::Describe() const {
  const std::string known =
      absl::StrFormat("%.0f %% of it measured, %.0f %% interpolated", 100 * ShareOf(prediction_, Knowledge::kMeasured),
                      100 * ShareOf(prediction_, Knowledge::kInterpolated));
  if (predicted_seconds() == 0) {
    return absl::StrCat("no prediction of a step's seconds: ", known, "; measure this job with calibrate --job=JOB");
  }
  std::string line =
      absl::StrCat("a step was predicted to take ", FormatSeconds(predicted_seconds()), " (", known, ")");
  if (steps_ < 2) return line;
  const double mean = seconds_ / static_cast<double>(steps_ - 1);
  absl::StrAppendFormat(&line, "; it takes %s in the mean, %+.1f %%", FormatSeconds(mean),
                        100 * (mean / predicted_seconds() - 1));
  return line;
}

}  // namespace shale
