#include "engine/report/timeline.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/text/layout.h"
#include "engine/text/numbers.h"

namespace shale {
namespace {

enum class Part { kBegin, kForward, kLoss, kBackward, kReduce, kUpdate, kEnd };
constexpr std::array<absl::string_view, 7> kParts = {"begin", "forward", "loss", "backward", "reduce", "update", "end"};

Part PartOf(Phase phase, const LiveBytes& live) {
  switch (phase) {
    case Phase::kBegin: return Part::kBegin;
    case Phase::kForward:
      return live.by_category[static_cast<int>(BufferCategory::kLossWorkspace)] > 0 ? Part::kLoss : Part::kForward;
    case Phase::kRecompute:
    case Phase::kBackward: return Part::kBackward;
    case Phase::kReduce: return Part::kReduce;
    case Phase::kUpdate: return Part::kUpdate;
    case Phase::kEnd: break;
  }
  return Part::kEnd;
}

std::string Bytes(int64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

}  // namespace

std::vector<Moment> TimelineOf(const StepProgram& program) {
  std::array<Moment, kParts.size()> peaks;
  VisitLiveBytes(program, [&](InstructionId id, const LiveBytes& live) {
    Moment& peak = peaks[static_cast<size_t>(PartOf(program.instructions[id].phase, live))];
    if (peak.instruction < 0 || live.total > peak.live.total) {
      peak.instruction = id;
      peak.live = live;
    }
  });
  std::vector<Moment> moments = {{.name = "held after load", .live = PersistentBytes(program)}};
  for (size_t part = 0; part < kParts.size(); ++part) {
    if (peaks[part].instruction < 0) continue;
    peaks[part].name = absl::StrCat("peak of ", kParts[part]);
    moments.push_back(peaks[part]);
  }
  moments.push_back({.name = "held after the step", .live = PersistentBytes(program)});
  return moments;
}

std::vector<BufferCategory> CategoriesOf(const std::vector<Moment>& moments) {
  std::vector<BufferCategory> categories;
  for (int c = 0; c < kBufferCategories; ++c) {
    if (std::any_of(moments.begin(), moments.end(), [&](const Moment& m) { return m.live.by_category[c] > 0; })) {
      categories.push_back(static_cast<BufferCategory>(c));
    }
  }
  return categories;
}

std::string ReachedAt(const StepProgram& program, const Moment& moment) {
  if (moment.instruction < 0) return "";
  const Instruction& instruction = program.instructions[moment.instruction];
  return absl::StrCat(moment.instruction, " ",
                      instruction.unit < 0 ? "" : absl::StrCat(program.units[instruction.unit], " "),
                      NameOf(instruction));
}

std::string TimelineText(const StepProgram& program, const std::vector<Moment>& moments) {
  const std::vector<BufferCategory> categories = CategoriesOf(moments);
  // Breaks headings into lines, so that columns stay narrow.
  std::vector<std::vector<std::string>> headings = {{""}, {"total"}};
  for (BufferCategory category : categories) headings.push_back(absl::StrSplit(Wrap(ToString(category), 10), '\n'));
  headings.push_back({"reached at"});
  size_t lines = 0;
  for (const auto& words : headings) lines = std::max(lines, words.size());
  std::vector<std::vector<std::string>> rows(lines);
  for (const auto& words : headings) {
    for (size_t line = 0; line < lines; ++line) {
      // Aligns shorter headings with the last line.
      const size_t above = lines - words.size();
      rows[line].push_back(line < above ? "" : words[line - above]);
    }
  }
  for (const Moment& moment : moments) {
    std::vector<std::string> row = {moment.name, Bytes(moment.live.total)};
    for (BufferCategory category : categories) {
      row.push_back(Bytes(moment.live.by_category[static_cast<int>(category)]));
    }
    row.push_back(ReachedAt(program, moment));
    rows.push_back(std::move(row));
  }
  return absl::StrCat("Memory of one rank over a step\n", Table(rows));
}

}  // namespace shale
