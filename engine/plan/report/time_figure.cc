#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/compile/program/live_bytes.h"
#include "engine/plan/report/plan_page.h"
#include "engine/plan/report/step_report.h"
#include "engine/strings/printing.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

// The edges of the plot in units of the view box, and how many columns the seconds are divided into.
constexpr double kPlotLeft = 80, kPlotWidth = 1110, kMemoryTop = 20, kMemoryBottom = 180, kLaneHeight = 22,
                 kBarHeight = 14;
constexpr int kTimeColumns = 1110;
// How many moments the cursor stops at.
constexpr int kTimeMoments = 370;

std::string Coordinate(double x) { return absl::StrFormat("%.1f", x); }

// Returns the measured issues that stand beside those of `predicted`, which has only some iterations of a long loop:
// the first ones and the last. The time of all others is cut out, from the first instruction of the compute stream in
// the first of them to that in the last iteration.
std::vector<IssueTimes> Shortened(const StepProgram& program, const std::vector<IssueTimes>& predicted,
                                  const std::vector<IssueTimes>& measured) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Cut {
    double begin = kNever, end = kNever;
  };
  std::vector<int64_t> shown(program.loops.size(), 1);  // Iterations of each loop.
  for (const IssueTimes& times : predicted) {
    shown[times.issue.loop] = std::max(shown[times.issue.loop], times.issue.iteration + 1);
  }
  const auto is_last = [&](const Issue& issue) { return issue.iteration + 1 == program.loops[issue.loop].repeat; };
  const auto is_cut = [&](const Issue& issue) { return issue.iteration + 1 >= shown[issue.loop] && !is_last(issue); };
  std::vector<Cut> cuts(program.loops.size());
  for (const IssueTimes& times : measured) {
    if (program.instructions[times.issue.id].stream != StreamId::kCompute) continue;
    Cut& cut = cuts[times.issue.loop];
    if (is_cut(times.issue)) cut.begin = std::min(cut.begin, times.begin);
    if (is_last(times.issue)) cut.end = std::min(cut.end, times.begin);
  }
  const auto shortened = [&](double seconds) {
    double away = 0;
    for (const Cut& cut : cuts) {
      if (cut.begin < cut.end && cut.end < kNever) away += std::clamp(seconds, cut.begin, cut.end) - cut.begin;
    }
    return seconds - away;
  };
  std::vector<IssueTimes> issues;
  for (IssueTimes times : measured) {
    if (is_cut(times.issue)) continue;
    times.issue.iteration = std::min(times.issue.iteration, shown[times.issue.loop] - 1);
    times.begin = shortened(times.begin);
    times.end = shortened(times.end);
    issues.push_back(times);
  }
  return issues;
}

class SecondsFigure {
 public:
  SecondsFigure(const StepProgram& program, const Prediction& prediction, const MeasuredStep* measured)
      : program_(program), prediction_(prediction), issues_(prediction.times.issues), step_(measured) {
    if (measured != nullptr) measured_ = Shortened(program, issues_, measured->times.issues);
    for (const IssueTimes& times : issues_) seconds_ = std::max(seconds_, times.end);
    for (const IssueTimes& times : measured_) seconds_ = std::max(seconds_, times.end);
    for (int s = 0; s < kStreams; ++s) {
      if (UsesStream(program, static_cast<StreamId>(s))) streams_.push_back(static_cast<StreamId>(s));
    }
    if (shows()) bytes_ = LiveColumns(issues_);
  }

  std::string Html() const {
    if (!shows()) return "";
    std::set<std::pair<InstructionId, int64_t>> path;  // Instructions of the critical path, with their iterations.
    for (const int32_t i : prediction_.times.path) path.emplace(issues_[i].issue.id, issues_[i].issue.iteration);
    std::string svg = Memory();
    double bottom = kMemoryBottom + 12;
    for (const StreamId stream : streams_) {
      absl::StrAppend(&svg, Lane(ToString(stream), issues_, stream, path, bottom));
      bottom += kLaneHeight;
      if (step_ == nullptr) continue;
      absl::StrAppend(&svg, Lane("measured", measured_, stream, path, bottom));
      bottom += kLaneHeight;
    }
    return absl::StrCat(
        "<h2>A step in seconds, on ", Name(), "</h2>\n<p>", Caption(),
        "</p>\n<figure>\n<svg id=\"times\" class=\"slider\" viewBox=\"0 0 1200 ", Coordinate(bottom + 30),
        "\" role=\"slider\" tabindex=\"0\" aria-label=\"Live bytes and streams over the ",
        step_ == nullptr ? "" : "predicted and the measured ",
        "seconds of a step\" aria-valuemin=\"0\" aria-valuemax=\"", kTimeMoments - 1, "\" aria-valuenow=\"",
        PeakMoment(), "\">\n", svg, Axis(bottom), "<line id=\"times-cursor\" class=\"cursor\" y1=\"",
        Coordinate(kMemoryTop), "\" y2=\"", Coordinate(bottom),
        "\"/>\n</svg>\n</figure>\n<p class=\"quiet screen\">Point at a moment, or select the figure and "
        "use the keys of the one above.</p>\n<div id=\"times-moment\" class=\"moment screen\" "
        "aria-live=\"polite\"></div>\n",
        StreamsTable());
  }

  // Adds the data of the script.
  void AddData(nlohmann::json& data) const {
    if (!shows()) return;
    nlohmann::json streams = nlohmann::json::array(), names = nlohmann::json::array();
    for (const StreamId stream : streams_) streams.push_back(std::string(ToString(stream)));
    std::map<std::string, int> numbers;
    const Running predicted = RunningIn(issues_, numbers, names), measured = RunningIn(measured_, numbers, names);
    nlohmann::json columns = nlohmann::json::array();
    for (int m = 0; m < kTimeMoments; ++m) {
      columns.push_back(nlohmann::json::array({BytesAt(m), predicted[m]}));
      if (step_ != nullptr) columns.back().push_back(measured[m]);
    }
    data["times"] = {{"columns", std::move(columns)},
                     {"streams", std::move(streams)},
                     {"names", std::move(names)},
                     {"seconds", seconds_},
                     {"left", kPlotLeft},
                     {"width", kPlotWidth},
                     {"peak", PeakMoment()}};
  }

 private:
  using Running = std::vector<std::vector<int>>;  // By moment and stream: the number of a name, or -1.

  bool shows() const { return !issues_.empty() && seconds_ > 0; }

  // Returns what each stream runs. Adds the names of these instructions to `numbers` and `names`.
  Running RunningIn(const std::vector<IssueTimes>& issues, std::map<std::string, int>& numbers,
                    nlohmann::json& names) const {
    Running running(kTimeMoments, std::vector<int>(streams_.size(), -1));
    for (const IssueTimes& times : issues) {
      const Instruction& instruction = program_.instructions[times.issue.id];
      const auto lane = std::find(streams_.begin(), streams_.end(), instruction.stream) - streams_.begin();
      for (int m = FirstMomentFrom(times.begin), end = FirstMomentFrom(times.end); m < end; ++m) {
        std::string name = absl::StrCat(instruction.unit < 0 ? "" : program_.units[instruction.unit],
                                        instruction.unit < 0 ? "" : " ", NameOf(instruction));
        const auto [at, added] = numbers.try_emplace(std::move(name), static_cast<int>(numbers.size()));
        if (added) names.push_back(at->first);
        running[m][lane] = at->second;
      }
    }
    return running;
  }

  // A moment is the middle of a column of the script. Returns the first that is not before `seconds`.
  int FirstMomentFrom(double seconds) const {
    return std::clamp(static_cast<int>(std::ceil(seconds / seconds_ * kTimeMoments - 0.5)), 0, kTimeMoments);
  }
  int64_t BytesAt(int moment) const { return bytes_[(2 * moment + 1) * kTimeColumns / (2 * kTimeMoments)]; }
  int PeakMoment() const {
    int peak = 0;
    for (int m = 1; m < kTimeMoments; ++m) peak = BytesAt(m) > BytesAt(peak) ? m : peak;
    return peak;
  }

  // The name of a profile is text of a file.
  std::string Name() const {
    std::string name;
    for (const char c : prediction_.machine) {
      if (c != '<' && c != '>' && c != '&') name += c;
    }
    return name;
  }

  std::string Caption() const {
    std::string text = absl::StrCat(FormatSeconds(prediction_.step_seconds), ", predicted");
    if (step_ != nullptr) {
      absl::StrAppend(&text, ", of which its program takes ", FormatSeconds(prediction_.times.seconds), ". In step ",
                      step_->step, " of a run the program took ", FormatSeconds(step_->times.seconds),
                      " on rank 0, as a trace measured");
    }
    absl::StrAppend(&text, ". Above: the live bytes of the arena",
                    step_ == nullptr ? "" : ", as an area over the predicted seconds and as a line over the measured",
                    ". Below: when each stream works",
                    step_ == nullptr
                        ? "; the critical path is marked."
                        : ", as predicted and as measured; the predicted critical path is marked in both.");
    return text + Shown();
  }

  // Returns a table of how long each stream was predicted to be busy, and how long it was.
  std::string StreamsTable() const {
    if (step_ == nullptr) return "";
    std::string html = absl::StrCat(BeginTable("Predicted and measured seconds"),
                                    "<th>busy</th><th class=\"n\">predicted</th><th class=\"n\">measured</th>"
                                    "<th class=\"n\">difference</th></tr></thead><tbody>\n");
    const auto row = [&](absl::string_view name, double predicted, double measured) {
      absl::StrAppend(&html, "<tr><td>", name, "</td><td class=\"n\">", FormatSeconds(predicted),
                      "</td><td class=\"n\">", FormatSeconds(measured), "</td><td class=\"n\">",
                      predicted > 0 ? absl::StrFormat("%+.1f %%", 100 * (measured / predicted - 1)) : "",
                      "</td></tr>\n");
    };
    for (const StreamId stream : streams_) {
      const auto s = static_cast<size_t>(stream);
      row(ToString(stream), prediction_.times.busy_seconds[s], step_->times.busy_seconds[s]);
    }
    row("the program", prediction_.times.seconds, step_->times.seconds);
    return absl::StrCat(html, "</tbody></table></div>\n");
  }

  // Says so if a loop has more iterations than there are in the figure.
  std::string Shown() const {
    const bool all = std::all_of(issues_.begin(), issues_.end(), [](const IssueTimes& t) { return t.times == 1; });
    return all ? "" : " Of the iterations of a loop, which repeat, only some are shown.";
  }

  int ColumnAt(double seconds) const {
    return std::clamp(static_cast<int>(seconds / seconds_ * kTimeColumns), 0, kTimeColumns - 1);
  }

  // Returns the bytes that are live when instructions begin: of each column the most. Lifetimes follow the order of
  // issue, and so does the compute stream; copies run ahead of it.
  std::vector<int64_t> LiveColumns(const std::vector<IssueTimes>& issues) const {
    std::vector<int64_t> live_at(program_.instructions.size(), 0);
    VisitLiveBytes(program_, [&](InstructionId id, const LiveBytes& live) { live_at[id] = live.total; });
    std::vector<int64_t> bytes(kTimeColumns, 0);
    for (const IssueTimes& times : issues) {
      if (program_.instructions[times.issue.id].stream != StreamId::kCompute) continue;
      int64_t& most = bytes[ColumnAt(times.begin)];
      most = std::max(most, live_at[times.issue.id]);
    }
    // A column in which nothing begins has what the one before has.
    for (int i = 1; i < kTimeColumns; ++i) bytes[i] = bytes[i] == 0 ? bytes[i - 1] : bytes[i];
    return bytes;
  }

  // Returns the area of the live bytes, and the line of those of the measured step.
  std::string Memory() const {
    const int64_t most = std::max<int64_t>(1, *std::max_element(bytes_.begin(), bytes_.end()));
    const std::string line = step_ == nullptr ? ""
                                              : absl::StrCat("<path class=\"measured\" d=\"",
                                                             Outline(LiveColumns(measured_), most), "\"/>\n");
    return absl::StrCat("<path fill=\"var(--c2)\" d=\"", Outline(bytes_, most), "Z\"/>\n", line,
                        "<text text-anchor=\"end\" x=\"", Coordinate(kPlotLeft - 8), "\" y=\"",
                        Coordinate(kMemoryTop + 4), "\">", FormatBytes(most), "</text>\n");
  }

  static std::string Outline(const std::vector<int64_t>& bytes, int64_t most) {
    const auto y = [&](int64_t b) {
      return kMemoryBottom - (kMemoryBottom - kMemoryTop) * static_cast<double>(b) / static_cast<double>(most);
    };
    std::string path =
        absl::StrCat("M", Coordinate(kPlotLeft), ",", Coordinate(kMemoryBottom), "V", Coordinate(y(bytes[0])));
    for (int i = 1; i < kTimeColumns; ++i) {
      if (bytes[i] == bytes[i - 1]) continue;
      absl::StrAppend(&path, "H", Coordinate(X(i)), "V", Coordinate(y(bytes[i])));
    }
    return absl::StrCat(path, "H", Coordinate(X(kTimeColumns)), "V", Coordinate(kMemoryBottom));
  }

  static double X(int column) { return kPlotLeft + kPlotWidth * column / kTimeColumns; }

  // Returns the bars of a stream, below `top`.
  std::string Lane(absl::string_view name, const std::vector<IssueTimes>& issues, StreamId stream,
                   const std::set<std::pair<InstructionId, int64_t>>& path, double top) const {
    std::vector<bool> busy(kTimeColumns, false), critical(kTimeColumns, false);
    for (const IssueTimes& times : issues) {
      if (program_.instructions[times.issue.id].stream != stream) continue;
      const bool on_path = path.count({times.issue.id, times.issue.iteration}) > 0;
      for (int i = ColumnAt(times.begin), last = ColumnAt(times.end); i <= last; ++i) {
        busy[i] = true;
        critical[i] = critical[i] || on_path;
      }
    }
    return absl::StrCat("<text text-anchor=\"end\" x=\"", Coordinate(kPlotLeft - 8), "\" y=\"", Coordinate(top + 11),
                        "\">", name, "</text>\n", Bars(busy, top, "var(--c3)"), Bars(critical, top, "var(--mark)"));
  }

  static std::string Bars(const std::vector<bool>& columns, double top, absl::string_view color) {
    std::string path;
    for (int i = 0; i < kTimeColumns;) {
      const int begin = i;
      while (i < kTimeColumns && columns[i] == columns[begin]) ++i;
      if (!columns[begin]) continue;
      absl::StrAppend(&path, "M", Coordinate(X(begin)), ",", Coordinate(top), "H", Coordinate(X(i)), "v", kBarHeight,
                      "H", Coordinate(X(begin)), "Z");
    }
    return path.empty() ? "" : absl::StrCat("<path fill=\"", color, "\" d=\"", path, "\"/>\n");
  }

  std::string Axis(double top) const {
    std::string svg;
    for (int quarter = 0; quarter <= 4; ++quarter) {
      const double x = kPlotLeft + kPlotWidth * quarter / 4;
      absl::StrAppend(&svg, "<line class=\"grid\" x1=\"", Coordinate(x), "\" x2=\"", Coordinate(x), "\" y1=\"",
                      Coordinate(kMemoryTop), "\" y2=\"", Coordinate(top), "\"/><text text-anchor=\"",
                      quarter == 0   ? "start"
                      : quarter == 4 ? "end"
                                     : "middle",
                      "\" x=\"", Coordinate(x), "\" y=\"", Coordinate(top + 18), "\">",
                      quarter == 0 ? "0 s" : FormatSeconds(seconds_ * quarter / 4), "</text>\n");
    }
    return svg;
  }

  const StepProgram& program_;
  const Prediction& prediction_;
  const std::vector<IssueTimes>& issues_;
  const MeasuredStep* const step_;  // May be null.
  std::vector<IssueTimes> measured_;
  std::vector<StreamId> streams_;
  double seconds_ = 0;          // When the last of the issues that are shown ends.
  std::vector<int64_t> bytes_;  // LiveColumns.
};

}  // namespace

std::string TimeFigure(const StepProgram& program, const Prediction& prediction, const MeasuredStep* measured) {
  return SecondsFigure(program, prediction, measured).Html();
}

void AddTimes(const StepProgram& program, const Prediction& prediction, const MeasuredStep* measured,
              nlohmann::json& data) {
  SecondsFigure(program, prediction, measured).AddData(data);
}

}  // namespace shale
