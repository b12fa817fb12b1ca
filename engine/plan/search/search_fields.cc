#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/plan/config/job_from_spec.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/search/search.h"
#include "engine/plan/search/ways.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace internal {
namespace {

std::vector<const Option*> OptionsInOrder() {
  std::vector<const Option*> all;
  for (const Option& option : Options()) {
    if (option.all != nullptr) all.push_back(&option);
  }
  std::sort(all.begin(), all.end(), [](auto* a, auto* b) { return a->search_order < b->search_order; });
  return all;
}

}  // namespace

const std::vector<const Option*>& SearchedOptions() {
  static const auto* const options = new std::vector<const Option*>(OptionsInOrder());
  return *options;
}

size_t PositionOf(absl::string_view path) {
  const std::vector<const Option*>& all = SearchedOptions();
  const auto at = std::find_if(all.begin(), all.end(), [&](const Option* option) { return option->path == path; });
  SHALE_CHECK(at != all.end()) << path;
  return static_cast<size_t>(at - all.begin());
}

bool AreAlike(Job a, Job b) {
  for (Job* job : {&a, &b}) job->sharding.shard_ranks = ShardRanks(job->sharding);
  return a == b;
}

}  // namespace internal

namespace {

constexpr char kEveryField[] = "*";

// Returns whether a job leaves all fields to a search that one can decide.
bool SearchesAll(const Job& job) {
  const std::vector<std::string>& named = job.runtime.search;
  return std::find(named.begin(), named.end(), kEveryField) != named.end();
}

// Returns whether a job leaves the field at `path` to a search.
bool IsSearched(absl::string_view path, const Job& job) {
  const std::vector<std::string>& named = job.runtime.search;
  return SearchesAll(job) || std::find(named.begin(), named.end(), path) != named.end();
}

}  // namespace

std::vector<std::string> SearchFields() {
  std::vector<std::string> fields;
  for (const Option* option : internal::SearchedOptions()) fields.emplace_back(option->path);
  return fields;
}

absl::Status CheckSearchField(absl::string_view path) {
  const std::vector<std::string> fields = SearchFields();
  if (std::find(fields.begin(), fields.end(), path) != fields.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found ", Quoted(path), "; allowed: ", absl::StrJoin(fields, ", ")));
}

absl::Status CheckSearchedFields(const Job& job) {
  for (const std::string& field : job.runtime.search) {
    const absl::Status known = field == kEveryField ? absl::OkStatus() : CheckSearchField(field);
    if (known.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("runtime.search: ", known.message(), ", and ", Quoted(kEveryField), " for all of them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DecidedFields> DecideFields(const Job& job, const Machine& machine, const JobWith& job_with,
                                           const WorkLimits& limits) {
  SHALE_RETURN_IF_ERROR(CheckSearchedFields(job));
  SearchQuery query{.job = job, .machine = machine, .job_with = job_with, .only_best = true};
  if (!SearchesAll(job)) query.fields = job.runtime.search;
  const absl::StatusOr<SearchResult> found = FindFastest(query, limits);
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
  decided.settings.emplace_back("runtime.search=[]");
  return decided;
}

Job WithSearchedFieldsOf(const Job& decided, const Job& job) {
  Job with = job;
  for (const Option* option : internal::SearchedOptions()) {
    if (!IsSearched(option->path, job)) continue;
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
