#include "engine/plan/search/decided_fields.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/search/search.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<DecidedFields> DecideFields(Job job, const DataFacts& data, const Machine& machine,
                                           const JobWith& job_with, WorkLimits limits) {
  constexpr std::chrono::seconds kMostTime{20};
  SHALE_CHECK(!job.runtime.search.empty());
  SHALE_RETURN_IF_ERROR(CheckSearchedFields(job));
  ApplyDataFacts(data, job);
  limits.deadline = std::min(limits.deadline, WorkLimits::Clock::now() + kMostTime);
  const absl::StatusOr<SearchResult> found = FindFastest(
      {.job = job, .machine = machine, .fields = SearchedFields(job), .job_with = job_with, .only_best = true}, limits);
  if (absl::IsDeadlineExceeded(found.status())) {
    return absl::DeadlineExceededError(
        "runtime.search: found nothing that fits in the time that it may take; name fewer fields, or leave it out");
  }
  if (absl::IsFailedPrecondition(found.status()) && machine.profile == nullptr) {
    return absl::FailedPreconditionError(
        "runtime.search: nothing is known of this machine's speed; measure it once (calibrate), or leave "
        "runtime.search out");
  }
  if (!found.ok()) {
    return absl::Status(found.status().code(), absl::StrCat("runtime.search: ", found.status().message()));
  }
  DecidedFields decided{.why = ChoicesText(*found)};
  for (const Override& setting : found->best.overrides) decided.settings.push_back(setting.text());
  decided.settings.emplace_back(kNothingSearched);
  return decided;
}

Job WithSearchedFieldsOf(const Job& decided, const Job& job) {
  Job with = job;
  const std::vector<std::string> fields = SearchedFields(job);
  for (const Option* option : SearchedOptions()) {
    if (std::find(fields.begin(), fields.end(), option->path) == fields.end()) continue;
    TakeField(option->path, decided, with);
    // The choice may have set other fields too.
    for (const Settings& settings : option->all(job)) {
      if (!HasSetting(decided, settings.front().text())) continue;
      for (const Override& setting : settings) TakeField(setting.path, decided, with);
    }
  }
  with.runtime.search.clear();
  return with;
}

}  // namespace shale
