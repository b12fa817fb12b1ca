#include "engine/plan/report/plan_html.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "engine/compile/program/program.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/report/plan_page.h"
#include "engine/plan/report/step_report.h"
#include "engine/strings/printing.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

constexpr int64_t kMostColumns = 2000;
constexpr size_t kBuffersOfColumn = 6;
constexpr size_t kMostRows = 2000;

// Size of the chart and the edges of its plot, in units of the view box.
constexpr double kWidth = 1200, kHeight = 470;
constexpr double kLeft = 80, kRight = 1190, kTop = 24, kBottom = 420;

std::string Number(double x) { return absl::StrFormat("%.1f", x); }

std::string Swatch(BufferCategory category) {
  return absl::StrCat("<span class=\"swatch\" style=\"background: var(--c", static_cast<int>(category), ")\"></span>");
}

class Page {
 public:
  Page(const Job& job, const JobPlan& plan, const PlanSeconds& seconds, const std::vector<ChangedJob>& changes,
       const MeasuredStep* measured)
      : job_(job),
        plan_(plan),
        seconds_(seconds),
        changes_(changes),
        measured_(measured),
        program_(plan.train.step.program),
        moments_(TimelineOf(program_)),
        columns_(ChartColumns(program_, kMostColumns, kBuffersOfColumn)) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].live.total > columns_[peak_].live.total) peak_ = i;
      for (int c = 0; c < kBufferCategories; ++c) has_bytes_[c] |= columns_[i].live.by_category[c] > 0;
    }
    // The scale leaves some room above the areas and above the line that marks the size of the arena.
    scale_bytes_ = std::max<double>(
        1, 1.04 * static_cast<double>(std::max(plan.train.memory.lower_bound_bytes, plan.arena_bytes)));
  }

  std::string Html() const {
    const std::string title = absl::StrCat("Memory plan of ", job_.name);
    return absl::StrCat("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
                        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
                        Escaped(title), "</title>\n<style>", kPlanStyle, "</style>\n</head>\n<body>\n<h1>",
                        Escaped(title), "</h1>\n", Summary(), Figure(),
                        seconds_.step == nullptr ? "" : TimeFigure(program_, *seconds_.step, measured_),
                        seconds_.search == nullptr ? "" : FrontFigure(*seconds_.search), ChangesTable(changes_),
                        MomentsTable(), PeakTable(), "<script type=\"application/json\" id=\"data\">", Data(),
                        "</script>\n<script>", kPlanScript, "</script>\n</body>\n</html>\n");
  }

 private:
  template <class Visitor>
  void ForEachCategory(Visitor&& visitor) const {
    for (int c = 0; c < kBufferCategories; ++c) {
      if (has_bytes_[c]) visitor(static_cast<BufferCategory>(c));
    }
  }

  std::string Summary() const {
    const MemoryPlan& memory = plan_.train.memory;
    const StepOptions& o = plan_.options;
    std::string text = absl::StrCat(
        "<p>", Escaped(Description(job_.model)), ", ", WithCommas(CountParameters(plan_.train.graph)), " parameters; ",
        Plural(o.mesh.ranks(), "rank"), ", ", ToString(o.strategy), ", accumulation ", ToString(o.accumulation), ", ",
        Plural(o.micro_batches, "micro-batch"), " of ", Plural(job_.batch.micro_batch, "sequence"), " of ",
        Plural(job_.batch.sequence_length, "token"), "; activation checkpointing ", ToString(o.activations.preset),
        ".</p>\n<p>One rank has an arena of <strong>", FormatBytes(plan_.arena_bytes),
        "</strong>. At its peak a step holds ", FormatBytes(memory.lower_bound_bytes), " in it");
    if (!program_.instructions.empty()) {
      absl::StrAppend(&text, ", at ", Escaped(Describe(program_, memory.peak_instruction)));
    }
    const Budget& budget = plan_.budget;
    if (budget.bytes != kNoBudget) absl::StrAppend(&text, ". The budget is ", FormatBytes(budget.bytes));
    const auto missing = [&](int64_t bytes, int64_t budget_bytes, absl::string_view of) {
      if (bytes <= budget_bytes) return;
      absl::StrAppend(&text, ". <strong>The job does not fit: ", FormatBytes(bytes - budget_bytes), " ", of,
                      "are missing</strong>");
    };
    missing(plan_.arena_bytes, budget.bytes, "");
    missing(memory.host_bytes, budget.host_bytes, "of host memory ");
    return absl::StrCat(text, ".</p>\n");
  }

  double X(size_t column) const {
    return kLeft + (kRight - kLeft) * static_cast<double>(column) / static_cast<double>(columns_.size());
  }
  double Y(int64_t bytes) const { return kBottom - (kBottom - kTop) * static_cast<double>(bytes) / scale_bytes_; }

  // Returns the first column that ends after the instruction.
  size_t ColumnOf(InstructionId id) const {
    const auto it =
        std::partition_point(columns_.begin(), columns_.end(), [&](const ChartColumn& c) { return c.end <= id; });
    return static_cast<size_t>(it - columns_.begin());
  }

  // Returns horizontal lines at round numbers of bytes.
  std::string Grid() const {
    double step = 1;
    while (step * 6 < scale_bytes_) step *= 2;
    std::string svg;
    for (double bytes = 0; bytes <= scale_bytes_; bytes += step) {
      const auto whole = static_cast<int64_t>(bytes);
      const std::string y = Number(Y(whole));
      absl::StrAppend(&svg, "<line class=\"grid\" x1=\"", Number(kLeft), "\" x2=\"", Number(kRight), "\" y1=\"", y,
                      "\" y2=\"", y, "\"/><text text-anchor=\"end\" x=\"", Number(kLeft - 8), "\" y=\"",
                      Number(Y(whole) + 4), "\">", FormatBytes(whole), "</text>\n");
    }
    return svg;
  }

  // Returns an area for each category, stacked in the order of the enum, so that state held between steps is at the
  // bottom.
  std::string Areas() const {
    const size_t n = columns_.size();
    std::vector<int64_t> below(n, 0), above(n, 0);
    std::string svg;
    ForEachCategory([&](BufferCategory category) {
      for (size_t i = 0; i < n; ++i) above[i] = below[i] + columns_[i].live.by_category[static_cast<int>(category)];
      // The path goes along the top from left to right, and back along the bottom. Most columns have the height of the
      // one before and need no step.
      std::string path = absl::StrCat("M", Number(X(0)), ",", Number(Y(above[0])));
      for (size_t i = 1; i < n; ++i) {
        if (above[i] != above[i - 1]) absl::StrAppend(&path, "H", Number(X(i)), "V", Number(Y(above[i])));
      }
      absl::StrAppend(&path, "H", Number(X(n)), "V", Number(Y(below[n - 1])));
      for (size_t i = n - 1; i > 0; --i) {
        if (below[i - 1] != below[i]) absl::StrAppend(&path, "H", Number(X(i)), "V", Number(Y(below[i - 1])));
      }
      absl::StrAppend(&svg, "<path fill=\"var(--c", static_cast<int>(category), ")\" d=\"", path, "H", Number(X(0)),
                      "Z\"><title>", ToString(category), "</title></path>\n");
      below = above;
    });
    return svg;
  }

  // Returns a bar below the chart for each loop that repeats, labeled with its iterations if there is room.
  std::string Loops() const {
    std::string svg;
    for (const Loop& loop : program_.loops) {
      if (loop.repeat == 1) continue;
      const double begin = X(ColumnOf(loop.begin)), end = X(ColumnOf(loop.end - 1) + 1);
      absl::StrAppend(&svg, "<rect class=\"loop\" x=\"", Number(begin), "\" width=\"", Number(end - begin), "\" y=\"",
                      Number(kBottom + 6), "\" height=\"5\"/>\n");
      const std::string times = Plural(loop.repeat, "time");
      if (end - begin < 8.0 * static_cast<double>(times.size())) continue;
      absl::StrAppend(&svg, "<text x=\"", Number(begin), "\" y=\"", Number(kBottom + 25), "\">", times, "</text>\n");
    }
    return svg;
  }

  // Returns a dashed line at `bytes` with a label, at the end of the line that is farther from the peak.
  std::string Limit(absl::string_view name, int64_t bytes) const {
    const std::string y = Number(Y(bytes));
    const bool left = PeakX() > (kLeft + kRight) / 2;
    return absl::StrCat("<line class=\"limit\" x1=\"", Number(kLeft), "\" x2=\"", Number(kRight), "\" y1=\"", y,
                        "\" y2=\"", y, "\"/><text x=\"", Number(left ? kLeft + 4 : kRight - 4), "\" text-anchor=\"",
                        left ? "start" : "end", "\" y=\"", Number(Y(bytes) - 5), "\">", name, " ", FormatBytes(bytes),
                        "</text>\n");
  }

  double PeakX() const { return (X(peak_) + X(peak_ + 1)) / 2; }

  // Returns the lines of the arena, of a budget that is smaller, and of the peak.
  std::string Marks() const {
    const double x = PeakX();
    const bool left = x > (kLeft + kRight) / 2, fits = plan_.arena_bytes <= plan_.budget.bytes;
    return absl::StrCat(Limit("arena", plan_.arena_bytes), fits ? "" : Limit("budget", plan_.budget.bytes),
                        "<line class=\"mark\" x1=\"", Number(x), "\" x2=\"", Number(x), "\" y1=\"", Number(kTop - 6),
                        "\" y2=\"", Number(kBottom), "\"/><text class=\"peak\" text-anchor=\"", left ? "end" : "start",
                        "\" x=\"", Number(left ? x - 6 : x + 6), "\" y=\"", Number(kTop - 10), "\">peak ",
                        FormatBytes(columns_[peak_].live.total), "</text>\n");
  }

  std::string Figure() const {
    if (columns_.empty()) return "";
    const std::string loops = Loops();
    std::string legend;
    ForEachCategory([&](BufferCategory category) {
      absl::StrAppend(&legend, "<li>", Swatch(category), ToString(category), "</li>");
    });
    return absl::StrCat(
        "<figure>\n<svg id=\"chart\" class=\"slider\" viewBox=\"0 0 ", kWidth, " ", kHeight,
        "\" role=\"slider\" tabindex=\"0\" aria-label=\"Live bytes by category over the instructions of a step\" "
        "aria-valuemin=\"0\" aria-valuemax=\"",
        columns_.size() - 1, "\" aria-valuenow=\"", peak_, "\">\n", Grid(), Areas(), loops, Marks(),
        "<line id=\"chart-cursor\" class=\"cursor\" y1=\"", Number(kTop), "\" y2=\"", Number(kBottom),
        "\"/>\n<text text-anchor=\"end\" x=\"", Number(kRight), "\" y=\"", Number(kBottom + 44), "\">",
        WithCommas(static_cast<int64_t>(program_.instructions.size())),
        " instructions of a step, in the order of issue",
        loops.empty() ? "" : "; a bar: they repeat for every micro-batch",
        "</text>\n</svg>\n<figcaption><ul class=\"legend\">", legend,
        "</ul></figcaption>\n</figure>\n<p class=\"quiet screen\">Point at an instruction, or select the chart and use "
        "the arrow keys, Page Up and Page Down, Home and End; P goes to the peak.</p>\n"
        "<div id=\"chart-moment\" class=\"moment screen\" aria-live=\"polite\"></div>\n");
  }

  std::string MomentsTable() const {
    const std::vector<BufferCategory> categories = CategoriesOf(moments_);
    std::string html = absl::StrCat(BeginTable("Moments of a step"),
                                    "<th>moment</th><th class=\"n\">total</th><th>reached at instruction</th>");
    for (BufferCategory category : categories) absl::StrAppend(&html, "<th class=\"n\">", ToString(category), "</th>");
    absl::StrAppend(&html, "</tr></thead><tbody>\n");
    for (const Moment& moment : moments_) {
      const bool peak = moment.instruction >= 0 && moment.instruction == plan_.train.memory.peak_instruction;
      absl::StrAppend(&html, peak ? "<tr class=\"peak\">" : "<tr>", "<td>", moment.name, "</td><td class=\"n\">",
                      FormatBytes(moment.live.total), "</td><td>", Escaped(ReachedAt(program_, moment)), "</td>");
      for (BufferCategory category : categories) {
        const int64_t bytes = moment.live.by_category[static_cast<int>(category)];
        absl::StrAppend(&html, "<td class=\"n\">", bytes == 0 ? "" : FormatBytes(bytes), "</td>");
      }
      absl::StrAppend(&html, "</tr>\n");
    }
    return absl::StrCat(html, "</tbody></table></div>\n");
  }

  std::string PeakTable() const {
    const std::vector<Lifetime> lifetimes = ComputeLifetimes(program_);
    const InstructionId peak = plan_.train.memory.peak_instruction;
    std::vector<BufferId> live;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const bool there = lifetimes[b].used() && lifetimes[b].first <= peak && peak <= lifetimes[b].last;
      if (there && program_.buffers[b].memory == MemoryKind::kDevice) live.push_back(static_cast<BufferId>(b));
    }
    std::stable_sort(live.begin(), live.end(), [&](BufferId a, BufferId b) {
      return program_.buffers[a].size_bytes() > program_.buffers[b].size_bytes();
    });
    std::string html =
        absl::StrCat(BeginTable("Buffers that are live at the peak"),
                     "<th>buffer</th><th class=\"n\">size</th><th class=\"n\">slots</th><th>category</th>"
                     "<th class=\"n\">address</th><th class=\"n\">first</th><th class=\"n\">last instruction</th>"
                     "</tr></thead><tbody>\n");
    int64_t rest_bytes = 0;
    for (size_t i = 0; i < live.size(); ++i) {
      const Buffer& buffer = program_.buffers[live[i]];
      if (i >= kMostRows) {
        rest_bytes += buffer.size_bytes();
        continue;
      }
      absl::StrAppend(&html, "<tr><td>", Escaped(buffer.name), "</td><td class=\"n\">",
                      FormatBytes(buffer.size_bytes()), "</td><td class=\"n\">", buffer.slots, "</td><td>",
                      Swatch(buffer.category), ToString(buffer.category), "</td><td class=\"n\">",
                      WithCommas(plan_.train.memory.addresses[live[i]]), "</td><td class=\"n\">",
                      lifetimes[live[i]].first, "</td><td class=\"n\">", lifetimes[live[i]].last, "</td></tr>\n");
    }
    absl::StrAppend(&html, "</tbody></table></div>\n");
    if (live.size() > kMostRows) {
      absl::StrAppend(&html, "<p>", WithCommas(static_cast<int64_t>(live.size() - kMostRows)), " smaller buffers have ",
                      FormatBytes(rest_bytes), " together.</p>\n");
    }
    return html;
  }

  // Returns the data that the script reads, in the form that plan_page.h describes.
  std::string Data() const {
    nlohmann::json columns = nlohmann::json::array(), buffers = nlohmann::json::array();
    nlohmann::json instructions = nlohmann::json::array(), categories = nlohmann::json::array();
    ForEachCategory([&](BufferCategory category) { categories.push_back(std::string(ToString(category))); });
    std::map<BufferId, size_t> index;
    for (const ChartColumn& column : columns_) {
      nlohmann::json live = nlohmann::json::array(), largest = nlohmann::json::array();
      ForEachCategory(
          [&](BufferCategory category) { live.push_back(column.live.by_category[static_cast<int>(category)]); });
      for (BufferId b : column.buffers) {
        const auto [it, added] = index.try_emplace(b, buffers.size());
        const Buffer& buffer = program_.buffers[b];
        if (added) {
          buffers.push_back(
              nlohmann::json::array({buffer.name, buffer.size_bytes(), std::string(ToString(buffer.category))}));
        }
        largest.push_back(it->second);
      }
      columns.push_back(nlohmann::json::array(
          {column.largest, column.begin, column.end, column.live.total, std::move(live), std::move(largest)}));
      instructions.push_back(Describe(program_, column.largest));
    }
    nlohmann::json data = {{"columns", std::move(columns)},
                           {"buffers", std::move(buffers)},
                           {"instructions", std::move(instructions)},
                           {"categories", std::move(categories)},
                           {"left", kLeft},
                           {"width", kRight - kLeft},
                           {"peak", peak_}};
    if (seconds_.step != nullptr) AddTimes(program_, *seconds_.step, measured_, data);
    // A script element ends at the first "</script", even inside a JSON string, so "<" is escaped.
    return absl::StrReplaceAll(data.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace),
                               {{"<", "\\u003c"}});
  }

  const Job& job_;
  const JobPlan& plan_;
  const PlanSeconds seconds_;
  const std::vector<ChangedJob>& changes_;
  const MeasuredStep* const measured_;  // May be null.
  const StepProgram& program_;
  const std::vector<Moment> moments_;
  const std::vector<ChartColumn> columns_;
  size_t peak_ = 0;  // The column of the peak.
  std::array<bool, kBufferCategories> has_bytes_ = {};
  double scale_bytes_ = 1;  // At the top of the chart.
};

}  // namespace

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string BeginTable(absl::string_view title) {
  return absl::StrCat("<h2>", title, "</h2>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", title,
                      "\"><table><thead><tr>");
}

std::vector<ChartColumn> ChartColumns(const StepProgram& program, int64_t most, size_t most_buffers) {
  const auto instructions = static_cast<int64_t>(program.instructions.size());
  const int64_t count = std::min(most, instructions);
  std::vector<ChartColumn> columns(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    columns[i].begin = static_cast<InstructionId>(i * instructions / count);
    columns[i].end = static_cast<InstructionId>((i + 1) * instructions / count);
    columns[i].largest = columns[i].begin;
  }
  size_t at = 0;
  VisitLiveBytes(program, [&](InstructionId id, const LiveBytes& live) {
    if (id == columns[at].end) ++at;
    if (id > columns[at].begin && live.total <= columns[at].live.total) return;
    columns[at].largest = id;
    columns[at].live = live;
  });
  // Live buffers, largest first.
  std::set<std::pair<int64_t, BufferId>> live;
  const auto key = [&](BufferId b) { return std::make_pair(-program.buffers[b].size_bytes(), b); };
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent && buffer.memory == MemoryKind::kDevice) live.insert(key(static_cast<BufferId>(b)));
  }
  const std::vector<LiveChange> changes = LiveChanges(program, ComputeLifetimes(program));
  at = 0;
  for (InstructionId id = 0; id < instructions; ++id) {
    if (id == columns[at].end) ++at;
    for (BufferId b : changes[id].begins) live.insert(key(b));
    if (id == columns[at].largest) {
      for (const auto& [negative, b] : live) {
        if (columns[at].buffers.size() == most_buffers) break;
        columns[at].buffers.push_back(b);
      }
    }
    for (BufferId b : changes[id].ends) live.erase(key(b));
  }
  return columns;
}

std::string PlanHtml(const Job& job, const JobPlan& plan, const PlanSeconds& seconds,
                     const std::vector<ChangedJob>& changes, const MeasuredStep* measured) {
  return Page(job, plan, seconds, changes, measured).Html();
}

}  // namespace shale
