#include "engine/train/user_metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/text/quote.h"

namespace shale {

absl::Status UserMetrics::Add(absl::string_view name, double value) {
  const auto allowed = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || absl::StrContains("_./-", c);
  };
  if (name.empty() || name.size() > kLongestName || !std::all_of(name.begin(), name.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a metric is ", Quoted(name), "; allowed: 1 to ",
                                                   kLongestName, " of the characters a-z 0-9 _ . / -"));
  }
  if (!std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat("metric ", name, " is ", value, "; wanted a finite number"));
  }
  if (const auto found = values_.find(name); found != values_.end()) {
    found->second = value;
    return absl::OkStatus();
  }
  if (values_.size() == kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("metric ", name, " is one too many: a report has at most ", kMost, " of them"));
  }
  values_.emplace(name, value);
  return absl::OkStatus();
}

std::vector<UserMetric> UserMetrics::Take() {
  std::vector<UserMetric> taken;
  for (const auto& [name, value] : values_) taken.push_back({name, value});
  values_.clear();
  return taken;
}

}  // namespace shale
