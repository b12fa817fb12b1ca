#include "engine/plan/report/step_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/compile/program/program.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

// Describes an instruction, and notes if it runs in every micro-batch.
std::string MomentText(const StepProgram& program, InstructionId id) {
  std::string text = Describe(program, id);
  if (program.instructions[id].micro_batch >= 0) absl::StrAppend(&text, ", in every micro-batch");
  return text;
}

enum class StepPart { kBegin, kForward, kLoss, kBackward, kReduce, kUpdate, kEnd };
constexpr std::array<absl::string_view, 7> kParts = {"begin", "forward", "loss", "backward", "reduce", "update", "end"};

StepPart PartOf(Phase phase, const LiveBytes& live) {
  switch (phase) {
    case Phase::kBegin: return StepPart::kBegin;
    case Phase::kForward:
      return live.by_category[static_cast<int>(BufferCategory::kLossWorkspace)] > 0 ? StepPart::kLoss
                                                                                    : StepPart::kForward;
    case Phase::kRecompute:
    case Phase::kBackward: return StepPart::kBackward;
    case Phase::kReduce: return StepPart::kReduce;
    case Phase::kUpdate: return StepPart::kUpdate;
    case Phase::kEnd: break;
  }
  return StepPart::kEnd;
}

std::string Bytes(int64_t bytes) { return bytes == 0 ? "-" : FormatBytes(bytes); }

}  // namespace

std::string MemoryReport(const StepProgram& program, const MemoryPlan& plan) {
  std::string text = absl::StrCat("peak ", FormatBytes(plan.peak_bytes), " (lower bound ",
                                  FormatBytes(plan.lower_bound_bytes), ") per rank\n");
  const auto row = [&](absl::string_view name, int64_t bytes) {
    if (bytes <= 0) return;
    absl::StrAppendFormat(&text, "  %-22s %9s %8s\n", name, FormatBytes(bytes),
                          Percent(static_cast<double>(bytes), static_cast<double>(plan.peak_bytes)));
  };
  for (int c = 0; c < kBufferCategories; ++c) row(ToString(static_cast<BufferCategory>(c)), plan.bytes_at_peak[c]);
  row("between buffers", plan.peak_bytes - plan.lower_bound_bytes);
  if (program.instructions.empty()) return text;
  absl::StrAppend(&text, "reached at ", MomentText(program, plan.peak_instruction), "\n");

  text += "largest buffers then\n";
  size_t width = 0;
  for (BufferId b : plan.largest_at_peak) width = std::max(width, program.buffers[b].name.size());
  for (BufferId b : plan.largest_at_peak) {
    const Buffer& buffer = program.buffers[b];
    absl::StrAppendFormat(&text, "  %9s  %-*s  %s", FormatBytes(buffer.size_bytes()), static_cast<int>(width),
                          buffer.name, ToString(buffer.category));
    if (buffer.slots > 1) absl::StrAppend(&text, ", ", buffer.slots, " slots of ", FormatBytes(buffer.slot_bytes));
    text += "\n";
  }
  return text;
}

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

std::string FactsTable(const std::vector<std::pair<std::string, std::string>>& facts) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, fact] : facts) {
    std::string heading = name;  // Only the first line of a fact has it.
    for (absl::string_view line : absl::StrSplit(Paragraph(fact, 95), '\n', absl::SkipEmpty())) {
      rows.push_back({std::exchange(heading, ""), std::string(line)});
    }
  }
  return Table(rows);
}

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
  return absl::StrCat("A step on ", p.machine, ", predicted\n", FactsTable(facts));
}

namespace {

// Returns "every 100 steps and at the end".
std::string HowOften(int64_t steps) {
  return steps > 0 ? absl::StrCat("every ", Plural(steps, "step"), " and at the end") : "at the end";
}

// Returns " (1.2 % of the run)" of what takes so many seconds after so many steps.
std::string ShareOfRun(double seconds, int64_t steps, const Prediction& step) {
  if (steps <= 0) return "";
  return absl::StrCat(" (", Percent(seconds, seconds + static_cast<double>(steps) * step.step_seconds), " of the run)");
}

std::string SaveText(const Job& job, const JobPlan& plan, const PauseTimes& pauses, const Prediction& step) {
  const int64_t every = job.checkpoint.every_steps;
  const std::string writes = absl::StrCat("writing ", FormatBytes(CheckpointBytes(job, plan)), " a rank");
  const std::string unknown = absl::StrCat(
      "how long ", writes, " takes is not known, because the profile has no speed of a disk (calibrate --folder)");
  std::string text = HowOften(every);
  if (!plan.snapshot) {
    return pauses.write_seconds > 0 ? absl::StrCat(text, ": ", writes, " takes ", FormatSeconds(pauses.save_seconds),
                                                   ShareOfRun(pauses.save_seconds, every, step))
                                    : absl::StrCat(text, ": ", unknown);
  }
  absl::StrAppend(&text, ": a copy of the state takes ", FormatSeconds(pauses.save_seconds),
                  ShareOfRun(pauses.save_seconds, every, step), "; while training goes on, ");
  if (pauses.write_seconds <= 0) return absl::StrCat(text, unknown);
  absl::StrAppend(&text, writes, " takes ", FormatSeconds(pauses.write_seconds));
  const double between = static_cast<double>(every) * step.step_seconds;
  if (every > 0 && pauses.write_seconds > between) {
    absl::StrAppend(&text, ", longer than the steps until the next save, which then waits");
  }
  return text;
}

}  // namespace

std::string PausesText(const Job& job, const JobPlan& plan, const PauseTimes& pauses, const Prediction& step) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (pauses.evaluation_seconds > 0) {
    const int64_t every = job.telemetry.evaluate_every;
    facts.emplace_back("evaluation",
                       absl::StrCat(HowOften(every), ": ", Plural(job.telemetry.evaluation_sequences, "sequence"),
                                    " of each source take ", FormatSeconds(pauses.evaluation_seconds),
                                    ShareOfRun(pauses.evaluation_seconds, every, step)));
  }
  facts.emplace_back("save", SaveText(job, plan, pauses, step));
  return absl::StrCat("Between steps, predicted\n", FactsTable(facts));
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
