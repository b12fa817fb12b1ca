#include "engine/plan/search/search_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// The most ways of the front that are shown: people choose among few.
constexpr size_t kMostShown = 12;

// Returns "1.21 s, 22.1 GiB".
std::string CostOf(const TimedVariant& way) {
  return absl::StrCat(FormatSeconds(way.seconds), ", ", CostText(way.variant.cost));
}

// Returns "1.24 x the time", of a way that takes longer than the best.
std::string Ratio(const TimedVariant& way, const TimedVariant& best) {
  return absl::StrFormat("%.2f x the time", way.seconds / best.seconds);
}

std::string SettingsOrJob(const std::vector<Override>& settings) {
  return settings.empty() ? "as the job says" : SettingsText(settings, ", ");
}

std::string ChoicesTable(const SearchResult& result) {
  std::vector<std::vector<std::string>> rows = {{"field", "choice, and the next best that fits"}};
  for (const SearchChoice& choice : result.choices) {
    if (choice.taken.empty() && !choice.runner_up) continue;  // Nothing else is possible.
    std::string text = SettingsOrJob(choice.taken);
    if (choice.runner_up) {
      absl::StrAppend(&text, "; ", SettingsOrJob(choice.runner_up->variant.overrides), " takes ",
                      CostOf(*choice.runner_up), " (", Ratio(*choice.runner_up, result.best), ")");
    } else {
      absl::StrAppend(&text, "; nothing else fits");
    }
    rows.push_back({choice.path, text});
  }
  return Table(rows);
}

// Returns the front, thinned to so many ways that the times of neighbors differ most.
std::vector<TimedVariant> Shown(const std::vector<TimedVariant>& front) {
  std::vector<TimedVariant> shown = front;
  while (shown.size() > kMostShown) {
    size_t closest = 1;
    for (size_t i = 1; i + 1 < shown.size(); ++i) {
      const auto gap = [&](size_t at) { return shown[at + 1].seconds / shown[at - 1].seconds; };
      if (gap(i) < gap(closest)) closest = i;
    }
    shown.erase(shown.begin() + static_cast<std::ptrdiff_t>(closest));
  }
  return shown;
}

std::string FrontTable(const SearchResult& result) {
  std::vector<std::vector<std::string>> rows = {{"step", "per rank", "settings"}};
  for (const TimedVariant& way : Shown(result.front)) {
    rows.push_back({FormatSeconds(way.seconds), CostText(way.variant.cost), SettingsOrJob(way.variant.overrides)});
  }
  return Table(rows);
}

// Returns the settings as flags, one to a line, to be pasted.
std::string Flags(const std::vector<Override>& overrides) {
  std::string text;
  for (const Override& setting : overrides) absl::StrAppend(&text, "  --set '", setting.text(), "'\n");
  return text;
}

}  // namespace

std::string SearchText(const SearchResult& result) {
  const TimedVariant &best = result.best, &own = result.own;
  std::string text = absl::StrCat("The fastest way that fits, of ", WithCommas(result.plans), " that were planned",
                                  result.ended_early ? " before the search ended early" : "", ": a step takes ",
                                  FormatSeconds(best.seconds), " and ", CostText(best.variant.cost), " per rank");
  if (result.budget.bytes != kNoBudget) absl::StrAppend(&text, "; the budget is ", FormatBytes(result.budget.bytes));
  absl::StrAppend(&text, ". ");
  if (!own.variant.status.ok()) {
    absl::StrAppend(&text, "The job as it is written has no plan: ", own.variant.status.message(), ".");
  } else {
    absl::StrAppend(&text, "The job as it is written takes ", CostOf(own), own.variant.fits ? "" : ", and does not fit",
                    ".");
  }
  text = Paragraph(text);
  if (best.variant.overrides.empty()) {
    absl::StrAppend(&text, "Nothing is faster than the job's own settings.\n");
  } else {
    absl::StrAppend(&text, "It is the job with\n", Flags(best.variant.overrides));
  }
  absl::StrAppend(&text, "\nWhy\n", ChoicesTable(result));
  absl::StrAppend(&text, "\nTime against memory: no way that was planned is better in both\n", FrontTable(result));
  return text;
}

}  // namespace shale
