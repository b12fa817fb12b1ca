#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
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

}  // namespace shale
