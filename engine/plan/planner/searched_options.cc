#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/plan/planner/options.h"
#include "engine/strings/messages.h"

namespace shale {
namespace {

constexpr char kEveryField[] = "*";  // In runtime.search.

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

std::vector<std::string> SearchFields() {
  std::vector<std::string> fields;
  for (const Option* option : SearchedOptions()) fields.emplace_back(option->path);
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

std::vector<std::string> SearchedFields(const Job& job) {
  const std::vector<std::string>& named = job.runtime.search;
  const auto names = [&](absl::string_view path) { return std::find(named.begin(), named.end(), path) != named.end(); };
  std::vector<std::string> fields = SearchFields();
  if (!names(kEveryField)) std::erase_if(fields, [&](const std::string& path) { return !names(path); });
  return fields;
}

}  // namespace shale
