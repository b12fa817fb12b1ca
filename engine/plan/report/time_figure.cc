#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
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

class SecondsFigure {
 public:
  SecondsFigure(const StepProgram& program, const Prediction& prediction)
      : program_(program), prediction_(prediction), issues_(prediction.times.issues) {
    for (const IssueTimes& times : issues_) seconds_ = std::max(seconds_, times.end);
    for (int s = 0; s < kStreams; ++s) {
      if (UsesStream(program, static_cast<StreamId>(s))) streams_.push_back(static_cast<StreamId>(s));
    }
    if (shows()) bytes_ = LiveColumns();
  }

  std::string Html() const {
    if (!shows()) return "";
    const double bottom = kMemoryBottom + 12 + kLaneHeight * static_cast<double>(streams_.size());
    std::string svg = Memory();
    for (size_t lane = 0; lane < streams_.size(); ++lane) absl::StrAppend(&svg, Lane(lane));
    return absl::StrCat(
        "<h2>A step in seconds, on ", Name(), "</h2>\n<p>", FormatSeconds(prediction_.step_seconds),
        ", predicted. Above: the live bytes of the arena. Below: when each stream works; the critical "
        "path is marked.",
        Shown(), "</p>\n<figure>\n<svg id=\"times\" class=\"slider\" viewBox=\"0 0 1200 ", Coordinate(bottom + 30),
        "\" role=\"slider\" tabindex=\"0\" aria-label=\"Live bytes and streams over the seconds of a "
        "step\" aria-valuemin=\"0\" aria-valuemax=\"",
        kTimeMoments - 1, "\" aria-valuenow=\"", PeakMoment(), "\">\n", svg, Axis(bottom),
        "<line id=\"times-cursor\" class=\"cursor\" y1=\"", Coordinate(kMemoryTop), "\" y2=\"", Coordinate(bottom),
        "\"/>\n</svg>\n</figure>\n<p class=\"quiet screen\">Point at a moment, or select the figure and "
        "use the keys of the one above.</p>\n<div id=\"times-moment\" class=\"moment screen\" "
        "aria-live=\"polite\"></div>\n");
  }

  // Adds the data of the script.
  void AddData(nlohmann::json& data) const {
    if (!shows()) return;
    nlohmann::json streams = nlohmann::json::array(), names = nlohmann::json::array();
    std::vector<std::vector<int>> running(kTimeMoments, std::vector<int>(streams_.size(), -1));
    std::map<std::string, int> numbers;
    for (size_t lane = 0; lane < streams_.size(); ++lane) streams.push_back(std::string(ToString(streams_[lane])));
    for (const IssueTimes& times : issues_) {
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
    nlohmann::json columns = nlohmann::json::array();
    for (int m = 0; m < kTimeMoments; ++m) columns.push_back(nlohmann::json::array({BytesAt(m), running[m]}));
    data["times"] = {{"columns", std::move(columns)},
                     {"streams", std::move(streams)},
                     {"names", std::move(names)},
                     {"seconds", seconds_},
                     {"left", kPlotLeft},
                     {"width", kPlotWidth},
                     {"peak", PeakMoment()}};
  }

 private:
  bool shows() const { return !issues_.empty() && seconds_ > 0; }

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
  std::vector<int64_t> LiveColumns() const {
    std::vector<int64_t> live_at(program_.instructions.size(), 0);
    VisitLiveBytes(program_, [&](InstructionId id, const LiveBytes& live) { live_at[id] = live.total; });
    std::vector<int64_t> bytes(kTimeColumns, 0);
    for (const IssueTimes& times : issues_) {
      if (program_.instructions[times.issue.id].stream != StreamId::kCompute) continue;
      int64_t& most = bytes[ColumnAt(times.begin)];
      most = std::max(most, live_at[times.issue.id]);
    }
    // A column in which nothing begins has what the one before has.
    for (int i = 1; i < kTimeColumns; ++i) bytes[i] = bytes[i] == 0 ? bytes[i - 1] : bytes[i];
    return bytes;
  }

  // Returns the area of the live bytes.
  std::string Memory() const {
    const std::vector<int64_t>& bytes = bytes_;
    const int64_t most = std::max<int64_t>(1, *std::max_element(bytes.begin(), bytes.end()));
    const auto y = [&](int64_t b) {
      return kMemoryBottom - (kMemoryBottom - kMemoryTop) * static_cast<double>(b) / static_cast<double>(most);
    };
    std::string path =
        absl::StrCat("M", Coordinate(kPlotLeft), ",", Coordinate(kMemoryBottom), "V", Coordinate(y(bytes[0])));
    for (int i = 1; i < kTimeColumns; ++i) {
      if (bytes[i] == bytes[i - 1]) continue;
      absl::StrAppend(&path, "H", Coordinate(X(i)), "V", Coordinate(y(bytes[i])));
    }
    return absl::StrCat("<path fill=\"var(--c2)\" d=\"", path, "H", Coordinate(X(kTimeColumns)), "V",
                        Coordinate(kMemoryBottom), "Z\"/>\n<text text-anchor=\"end\" x=\"", Coordinate(kPlotLeft - 8),
                        "\" y=\"", Coordinate(kMemoryTop + 4), "\">", FormatBytes(most), "</text>\n");
  }

  static double X(int column) { return kPlotLeft + kPlotWidth * column / kTimeColumns; }

  // Returns the bars of a stream.
  std::string Lane(size_t lane) const {
    std::vector<bool> busy(kTimeColumns, false), critical(kTimeColumns, false);
    const auto mark = [&](const IssueTimes& times, std::vector<bool>& columns) {
      if (program_.instructions[times.issue.id].stream != streams_[lane]) return;
      for (int i = ColumnAt(times.begin), last = ColumnAt(times.end); i <= last; ++i) columns[i] = true;
    };
    for (const IssueTimes& times : issues_) mark(times, busy);
    for (const int32_t i : prediction_.times.path) mark(issues_[i], critical);
    const double top = kMemoryBottom + 12 + kLaneHeight * static_cast<double>(lane);
    return absl::StrCat("<text text-anchor=\"end\" x=\"", Coordinate(kPlotLeft - 8), "\" y=\"", Coordinate(top + 11),
                        "\">", ToString(streams_[lane]), "</text>\n", Bars(busy, top, "var(--c3)"),
                        Bars(critical, top, "var(--mark)"));
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
  std::vector<StreamId> streams_;
  double seconds_ = 0;          // Until the last issue that was simulated ends.
  std::vector<int64_t> bytes_;  // LiveColumns.
};

}  // namespace

std::string TimeFigure(const StepProgram& program, const Prediction& prediction) {
  return SecondsFigure(program, prediction).Html();
}

void AddTimes(const StepProgram& program, const Prediction& prediction, nlohmann::json& data) {
  SecondsFigure(program, prediction).AddData(data);
}

}  // namespace shale
