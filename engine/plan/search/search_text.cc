#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/api/job.h"
#include "engine/plan/config/job_files.h"
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

// Returns what was chosen for a field, the next best that fits, and what is none. Empty if nothing else is possible.
std::string ReasonText(const SearchChoice& choice, const Cost& best) {
  std::string others;
  if (const std::optional<Variant>& next = choice.runner_up) {
    others = absl::StrCat("; ", SettingsOrJob(next->overrides), " takes ", SecondsAndBytes(*next), " (",
                          TimesText(next->cost, best), ")");
  }
  absl::StrAppend(&others, OthersText("too large", choice.too_large),
                  OthersText("ruled out by the job", choice.ruled_out),
                  OthersText("not tried, because the search ended", choice.not_tried));
  return choice.taken.empty() && others.empty() ? "" : absl::StrCat(SettingsOrJob(choice.taken), others);
}

std::string ChoicesTable(const SearchResult& result) {
  std::vector<std::vector<std::string>> rows = {{"field", "choice, the next best that fits, and what is none"}};
  for (const SearchChoice& choice : result.choices) {
    std::string reason = ReasonText(choice, result.best.cost);
    if (!reason.empty()) rows.push_back({choice.path, std::move(reason)});
  }
  return Table(rows);
}

// Returns a sentence about settings that give their field no value. Empty if there are none.
std::string LeavesOutText(const SearchResult& result) {
  const auto leaves_out = [](const std::vector<Override>& settings) {
    return std::any_of(settings.begin(), settings.end(), [](const Override& s) { return s.value.empty(); });
  };
  const bool any = leaves_out(result.best.overrides) ||
                   std::any_of(result.choices.begin(), result.choices.end(), [&](const SearchChoice& choice) {
                     return choice.runner_up && leaves_out(choice.runner_up->overrides);
                   });
  return any ? "A field that is set to nothing is left out, because it does not go with the others.\n" : "";
}

std::string FrontTable(const SearchResult& result) {
  std::vector<std::vector<std::string>> rows = {{"step", "per rank", "settings"}};
  for (const Variant& way : result.front) {
    rows.push_back({FormatSeconds(way.cost.seconds), CostText(way.cost), SettingsOrJob(way.overrides)});
  }
  return Table(rows);
}

// Returns the settings that change what is trained, each with what it changes. Empty if there are none.
std::string ChangingTable(const SearchResult& result) {
  if (result.changing.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"step", "per rank", "with these settings added"}};
  for (const Variant& way : result.changing) {
    rows.push_back({FormatSeconds(way.cost.seconds), CostText(way.cost),
                    absl::StrCat(SettingsText(way.overrides, ", "), ": ", way.caveat)});
  }
  return absl::StrCat("\nChanges the training, never taken by itself: the fastest way with settings added\n",
                      Table(rows));
}

// Returns the settings as flags, one to a line, to be pasted.
std::string Flags(const std::vector<Override>& overrides) {
  std::string text;
  for (const Override& setting : overrides) absl::StrAppend(&text, "  --set '", setting.text(), "'\n");
  return text;
}

// Returns the sentences that say what was found.
std::string HeadText(const SearchResult& result) {
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
  return text;
}

// Returns the text as comments of a textproto.
std::string Comments(absl::string_view text, absl::string_view indent) {
  std::string comments;
  for (const absl::string_view line : absl::StrSplit(Wrap(text, 116 - indent.size()), '\n')) {
    absl::StrAppend(&comments, indent, "# ", line, "\n");
  }
  return comments;
}

}  // namespace

std::string ChoicesText(const SearchResult& result) {
  std::string head = HeadText(result);
  if (!result.best.cost.covered()) {
    absl::StrAppend(&head, " Less than 90 % of the seconds is measured or interpolated, so they are estimates.");
  }
  return absl::StrCat(Paragraph(head), LeavesOutText(result), ChoicesTable(result));
}

std::string SearchText(const SearchResult& result) {
  const Variant& best = result.best;
  std::string text = Paragraph(HeadText(result));
  if (best.overrides.empty()) {
    absl::StrAppend(&text, "Nothing is faster than the job's own settings.\n");
  } else {
    absl::StrAppend(&text, "It is the job with\n", Flags(best.overrides));
  }
  absl::StrAppend(&text, LeavesOutText(result), "\nWhy\n", ChoicesTable(result));
  absl::StrAppend(&text, "\nTime against memory: no way that was compared is better in both\n", FrontTable(result),
                  ChangingTable(result));
  return text;
}

std::string SearchedJobText(const SearchResult& result, const Job& job) {
  std::map<std::string, std::string> reasons;  // By the path of the field.
  for (const SearchChoice& choice : result.choices) {
    const std::string reason = ReasonText(choice, result.best.cost);
    if (!reason.empty()) reasons[choice.path] = absl::StrCat("plan --search: ", reason);
  }
  std::string fields;
  std::vector<std::string> path = {""};  // Of the message around a line. Its fields follow the last dot.
  const std::string text = ResolvedJobText(job);
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    const absl::string_view field = absl::StripLeadingAsciiWhitespace(line);
    if (absl::StartsWith(field, "#")) continue;
    if (absl::EndsWith(field, " {")) {
      path.push_back(absl::StrCat(path.back(), field.substr(0, field.find(' ')), "."));
    } else if (field == "}") {
      path.pop_back();
    } else if (const auto reason = reasons.find(absl::StrCat(path.back(), field.substr(0, field.find(':'))));
               reason != reasons.end()) {
      absl::StrAppend(&fields, Comments(reason->second, line.substr(0, line.size() - field.size())));
      reasons.erase(reason);
    }
    absl::StrAppend(&fields, line, "\n");
  }
  std::string top = absl::StrCat(kResolvedJobHead, Comments(HeadText(result), ""));
  for (const auto& [left_out, reason] : reasons) {
    absl::StrAppend(&top, Comments(absl::StrCat(left_out, ", which has no line below: ", reason), ""));
  }
  return top + fields;
}

}  // namespace shale
