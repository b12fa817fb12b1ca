#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/search/search.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Returns "1.21 s, 22.1 GiB".
std::string SecondsAndBytes(const Variant& way) {
  return absl::StrCat(FormatSeconds(way.cost.seconds), ", ", CostText(way.cost));
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
      absl::StrAppend(&text, "; ", SettingsOrJob(choice.runner_up->overrides), " takes ",
                      SecondsAndBytes(*choice.runner_up), " (", TimesText(choice.runner_up->cost, result.best.cost),
                      ")");
    } else {
      absl::StrAppend(&text, "; nothing else fits");
    }
    rows.push_back({choice.path, text});
  }
  return Table(rows);
}

std::string FrontTable(const SearchResult& result) {
  std::vector<std::vector<std::string>> rows = {{"step", "per rank", "settings"}};
  for (const Variant& way : result.front) {
    rows.push_back({FormatSeconds(way.cost.seconds), CostText(way.cost), SettingsOrJob(way.overrides)});
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
  const Variant &best = result.best, &own = result.own;
  std::string text = absl::StrCat("The fastest way that fits, of ", WithCommas(result.plans), " that were compared",
                                  result.ended_early ? " before the search ended early" : "", ": a step takes ",
                                  FormatSeconds(best.cost.seconds), " and ", CostText(best.cost), " per rank");
  if (result.budget.bytes != kNoBudget) absl::StrAppend(&text, "; the budget is ", FormatBytes(result.budget.bytes));
  absl::StrAppend(&text, ". ");
  if (!own.status.ok()) {
    absl::StrAppend(&text, "The job as it is written has no plan: ", own.status.message(), ".");
  } else {
    absl::StrAppend(&text, "The job as it is written takes ", SecondsAndBytes(own),
                    own.fits ? "" : ", and does not fit", ".");
  }
  text = Paragraph(text);
  if (best.overrides.empty()) {
    absl::StrAppend(&text, "Nothing is faster than the job's own settings.\n");
  } else {
    absl::StrAppend(&text, "It is the job with\n", Flags(best.overrides));
  }
  absl::StrAppend(&text, "\nWhy\n", ChoicesTable(result));
  absl::StrAppend(&text, "\nTime against memory: no way that was compared is better in both\n", FrontTable(result));
  return text;
}

}  // namespace shale
