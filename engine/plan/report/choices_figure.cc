#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/report/plan_page.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// The edges of the plot in units of the view box.
constexpr double kFrontLeft = 80, kFrontRight = 1190, kFrontTop = 20, kFrontBottom = 260;

std::string At(double x) { return absl::StrFormat("%.1f", x); }

// Seconds over bytes. Both axes begin at zero, so that lengths compare.
class FrontPlot {
 public:
  explicit FrontPlot(const SearchResult& search) : search_(search) {
    for (const Variant& way : search.front) Include(way);
    if (search.own.status.ok()) Include(search.own);
    const auto budget = static_cast<double>(search.budget.bytes);
    shows_budget_ = search.budget.bytes != kNoBudget && budget < 4 * bytes_;
    if (shows_budget_) bytes_ = std::max(bytes_, budget);
  }

  std::string Svg() const {
    std::string svg = Grid();
    if (shows_budget_) {
      const std::string x = At(X(static_cast<double>(search_.budget.bytes)));
      absl::StrAppend(&svg, "<line class=\"limit\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", At(kFrontTop), "\" y2=\"",
                      At(kFrontBottom), "\"/><text text-anchor=\"end\" x=\"", x, "\" y=\"", At(kFrontTop - 6),
                      "\">budget</text>\n");
    }
    std::string path;
    for (const Variant& way : search_.front) {
      absl::StrAppend(&path, path.empty() ? "M" : "L", At(X(Bytes(way))), ",", At(Y(way.cost.seconds)));
    }
    absl::StrAppend(&svg, "<path fill=\"none\" stroke=\"var(--c1)\" stroke-width=\"2\" d=\"", path, "\"/>\n");
    for (const Variant& way : search_.front) absl::StrAppend(&svg, Dot(way, "var(--c1)", ""));
    if (search_.own.status.ok()) absl::StrAppend(&svg, Dot(search_.own, "var(--mark)", "this job"));
    return svg;
  }

 private:
  static double Bytes(const Variant& way) { return static_cast<double>(way.cost.arena_bytes); }

  void Include(const Variant& way) {
    seconds_ = std::max(seconds_, 1.05 * way.cost.seconds);
    bytes_ = std::max(bytes_, 1.05 * Bytes(way));
  }

  double X(double bytes) const { return kFrontLeft + (kFrontRight - kFrontLeft) * bytes / bytes_; }
  double Y(double seconds) const { return kFrontBottom - (kFrontBottom - kFrontTop) * seconds / seconds_; }

  std::string Grid() const {
    std::string svg;
    for (int quarter = 0; quarter <= 4; ++quarter) {
      const std::string x = At(X(bytes_ * quarter / 4)), y = At(Y(seconds_ * quarter / 4));
      absl::StrAppend(&svg, "<line class=\"grid\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", At(kFrontTop), "\" y2=\"",
                      At(kFrontBottom), "\"/><text text-anchor=\"", quarter == 4 ? "end" : "middle", "\" x=\"", x,
                      "\" y=\"", At(kFrontBottom + 18), "\">", FormatBytes(static_cast<int64_t>(bytes_ * quarter / 4)),
                      "</text>\n");
      if (quarter == 0) continue;
      absl::StrAppend(&svg, "<line class=\"grid\" x1=\"", At(kFrontLeft), "\" x2=\"", At(kFrontRight), "\" y1=\"", y,
                      "\" y2=\"", y, "\"/><text text-anchor=\"end\" x=\"", At(kFrontLeft - 8), "\" y=\"", y, "\">",
                      FormatSeconds(seconds_ * quarter / 4), "</text>\n");
    }
    return svg;
  }

  std::string Dot(const Variant& way, absl::string_view color, absl::string_view name) const {
    const std::string settings = way.overrides.empty() ? "as the job says" : SettingsText(way.overrides, ", ");
    const double x = X(Bytes(way)), y = Y(way.cost.seconds);
    std::string dot = absl::StrCat("<circle r=\"5\" fill=\"", color, "\" cx=\"", At(x), "\" cy=\"", At(y), "\"><title>",
                                   FormatSeconds(way.cost.seconds), ", ", CostText(way.cost), ": ", Escaped(settings),
                                   "</title></circle>\n");
    if (!name.empty()) {
      const bool left = x > (kFrontLeft + kFrontRight) / 2;
      absl::StrAppend(&dot, "<text class=\"peak\" text-anchor=\"", left ? "end" : "start", "\" x=\"",
                      At(left ? x - 9 : x + 9), "\" y=\"", At(y - 7), "\">", name, "</text>\n");
    }
    return dot;
  }

  const SearchResult& search_;
  double seconds_ = 1e-9, bytes_ = 1;  // At the ends of the axes.
  bool shows_budget_ = false;
};

// Returns the preset of all blocks that recomputes a little more than the job's. Empty if there is none.
Settings NextPreset(const Job& job) {
  const std::string own(ToString(job.activation_checkpointing.preset));
  const std::vector<absl::string_view> presets = {"NONE", "CHEAP", "ATTENTION", "FFN", "SUBLAYERS", "BLOCK"};
  const auto at = std::find(presets.begin(), presets.end(), own);
  if (at == presets.end() || at + 1 == presets.end()) return {};
  return {{"activation_checkpointing.preset", std::string(*(at + 1))}};
}

}  // namespace

std::string FrontFigure(const SearchResult& search) {
  std::string html = absl::StrCat(
      "<h2>Time against memory</h2>\n<p>The fastest ways to run the job that were found, each of which needs less "
      "memory "
      "than those that are faster. They train the same.</p>\n<figure>\n<svg viewBox=\"0 0 1200 290\" role=\"img\" "
      "aria-label=\"Seconds of a step over bytes of one rank\">\n",
      FrontPlot(search).Svg(), "</svg>\n</figure>\n", BeginTable("Ways to run the job"),
      "<th class=\"n\">a step</th><th class=\"n\">one rank</th><th>settings</th></tr></thead><tbody>\n");
  const auto add = [&](const Variant& way, absl::string_view row, absl::string_view settings) {
    absl::StrAppend(&html, row, "<td class=\"n\">", FormatSeconds(way.cost.seconds), "</td><td class=\"n\">",
                    CostText(way.cost), "</td><td>", Escaped(settings), "</td></tr>\n");
  };
  if (search.own.status.ok()) {
    add(search.own, "<tr class=\"peak\">", search.own.fits ? "this job" : "this job, which does not fit");
  }
  for (const Variant& way : search.front) {
    add(way, "<tr>", way.overrides.empty() ? "as the job says" : SettingsText(way.overrides, ", "));
  }
  return absl::StrCat(html, "</tbody></table></div>\n");
}

std::vector<ChangedJob> ChangesOf(Drafter& drafter) {
  const Job& job = drafter.job();
  const BatchConfig& batch = job.batch;
  const auto tokens = [](double sequences, int64_t length) { return sequences * static_cast<double>(length); };
  const auto sequences = static_cast<double>(batch.global_batch);
  std::vector<ChangedJob> changes;
  const auto add = [&](std::string what, Settings settings, double in_a_step) {
    Variant variant = drafter.TryWithAmpleScratch(std::move(settings));
    const bool over = absl::IsDeadlineExceeded(variant.status) || absl::IsCancelled(variant.status);
    if (variant.status.ok() || over) changes.push_back({std::move(what), std::move(variant), in_a_step});
  };
  const double own = tokens(sequences, batch.sequence_length);
  add("this job", {}, own);
  add("one more rank", {{"sharding.ranks", absl::StrCat(job.sharding.ranks + 1)}}, own);
  add("half the batch", {{"batch.global_batch", absl::StrCat(batch.global_batch / 2)}},
      tokens(static_cast<double>(batch.global_batch / 2), batch.sequence_length));
  add("twice the sequence", {{"batch.sequence_length", absl::StrCat(2 * batch.sequence_length)}}, 2 * own);
  if (const Settings next = NextPreset(job); !next.empty()) {
    add(absl::StrCat("recomputing ", next.front().value), next, own);
  }
  return changes;
}

std::string ChangesTable(const std::vector<ChangedJob>& changes) {
  if (changes.empty()) return "";
  const bool timed =
      std::any_of(changes.begin(), changes.end(), [](const ChangedJob& c) { return c.variant.cost.seconds > 0; });
  std::string html =
      absl::StrCat(BeginTable("What a change would take"), "<th>change</th><th class=\"n\">one rank</th>",
                   timed ? "<th class=\"n\">a step</th><th class=\"n\">tokens a second</th>" : "",
                   "<th>settings</th></tr></thead><tbody>\n");
  for (const ChangedJob& changed : changes) {
    const Cost& cost = changed.variant.cost;
    const bool planned = changed.variant.status.ok();
    absl::StrAppend(&html, "<tr><td>", Escaped(changed.what),
                    !planned               ? " (not planned: the time for planning was over)"
                    : changed.variant.fits ? ""
                                           : " (does not fit)",
                    "</td><td class=\"n\">", planned ? CostText(cost) : "-", "</td>");
    if (timed && cost.seconds <= 0) absl::StrAppend(&html, "<td class=\"n\">-</td><td class=\"n\">-</td>");
    if (timed && cost.seconds > 0) {
      absl::StrAppend(&html, "<td class=\"n\">", FormatSeconds(cost.seconds), "</td><td class=\"n\">",
                      WithCommas(static_cast<int64_t>(changed.tokens / cost.seconds)), "</td>");
    }
    absl::StrAppend(&html, "<td>", Escaped(SettingsText(changed.variant.overrides, ", ")), "</td></tr>\n");
  }
  return absl::StrCat(html, "</tbody></table></div>\n");
}

}  // namespace shale
