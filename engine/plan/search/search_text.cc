#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
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

// Returns "; do not fit: 4, 8". Empty if there are none. Settings of several fields are named by the value of the first
// one: "DDP, with accumulation=AUTO".
std::string OthersText(absl::string_view what, const std::vector<Settings>& others) {
  std::vector<std::string> names;
  for (const Settings& settings : others) {
    std::string name = settings.front().value;
    for (const Override& setting : settings) {
      const bool says_more = setting.path != settings.front().path && !setting.value.empty() && setting.value != "[]";
      if (says_more) absl::StrAppend(&name, " with ", setting.text());
    }
    names.push_back(std::move(name));
  }
  return names.empty() ? "" : absl::StrCat("; ", what, ": ", absl::StrJoin(names, ", "));
}

std::string ChoicesTable(const SearchResult& result) {
  std::vector<std::vector<std::string>> rows = {{"field", "choice, the next best that fits, and what is none"}};
  for (const SearchChoice& choice : result.choices) {
    std::string others;
    if (choice.runner_up) {
      others =
          absl::StrCat("; ", SettingsOrJob(choice.runner_up->overrides), " takes ", SecondsAndBytes(*choice.runner_up),
                       " (", TimesText(choice.runner_up->cost, result.best.cost), ")");
    }
    absl::StrAppend(&others, OthersText("too large", choice.too_large),
                    OthersText("ruled out by the job", choice.ruled_out),
                    OthersText("not tried, because the search ended", choice.not_tried));
    if (choice.taken.empty() && others.empty()) continue;  // Nothing else is possible.
    rows.push_back({choice.path, absl::StrCat(SettingsOrJob(choice.taken), others)});
  }
  return Table(rows);
}

// Returns whether some of these settings give their field no value.
bool LeavesOut(const std::vector<Override>& settings) {
  return std::any_of(settings.begin(), settings.end(), [](const Override& s) { return s.value.empty(); });
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
  const bool leaves_out =
      LeavesOut(best.overrides) || std::any_of(result.choices.begin(), result.choices.end(), [](const auto& choice) {
        return choice.runner_up && LeavesOut(choice.runner_up->overrides);
      });
  if (leaves_out) {
    text += "A field that is set to nothing is left out, because it does not go with the others.\n";
  }
  absl::StrAppend(&text, "\nWhy\n", ChoicesTable(result));
  absl::StrAppend(&text, "\nTime against memory: no way that was compared is better in both\n", FrontTable(result));
  return text;
}

}  // namespace shale
