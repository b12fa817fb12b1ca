#include "engine/plan/report/time_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Shares below this are left out.
constexpr double kLeastShare = 5e-4;

// Returns "97.0 % measured, 3.0 % interpolated" of shares that have names.
template <class Shares, class Name>
std::string SharesText(const Shares& shares, double whole, Name&& name) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] < kLeastShare * whole) continue;
    parts.push_back(absl::StrCat(name(i), " ", Percent(shares[i], whole)));
  }
  return absl::StrJoin(parts, ", ");
}

std::string IntervalText(const Prediction& p) {
  const std::string low = FormatSeconds(p.low_seconds), high = FormatSeconds(p.high_seconds);
  return absl::StrCat(FormatSeconds(p.step_seconds), low == high ? "" : absl::StrCat(", between ", low, " and ", high));
}

}  // namespace

std::string TimeText(const Prediction& p) {
  const std::vector<std::pair<std::string, std::string>> facts = {
      {"step", IntervalText(p)},
      {"speed", absl::StrCat(WithCommas(std::llround(p.tokens_per_second)), " tokens/s",
                             p.mfu > 0 ? absl::StrFormat(", MFU %.1f %%", 100 * p.mfu) : "")},
      {"known", absl::StrCat(SharesText(p.known, 1, [](size_t i) { return ToString(static_cast<Knowledge>(i)); }),
                             " of the streams' seconds")},
      {"limits", SharesText(p.limits, p.step_seconds, [](size_t i) { return ToString(static_cast<Limit>(i)); })},
      {"busy", SharesText(p.busy_seconds, p.step_seconds, [](size_t i) { return ToString(static_cast<StreamId>(i)); })},
  };
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, fact] : facts) {
    std::string heading = name;  // Only the first line of a fact has it.
    for (absl::string_view line : absl::StrSplit(Paragraph(fact, 95), '\n', absl::SkipEmpty())) {
      rows.push_back({std::exchange(heading, ""), std::string(line)});
    }
  }
  return absl::StrCat("A step on ", p.machine, ", predicted\n", Table(rows));
}

std::string PathText(const Prediction& p) {
  std::vector<std::vector<std::string>> rows = {{"unit", "instructions", "seconds", "of the step", ""}};
  for (const PathPart& part : p.path) {
    if (part.seconds < kLeastShare * p.step_seconds) break;
    rows.push_back({part.unit.empty() ? "-" : part.unit, part.name, FormatSeconds(part.seconds),
                    Percent(part.seconds, p.step_seconds), ""});
  }
  return absl::StrCat("The critical path of a step\n", Table(rows));
}

}  // namespace shale
