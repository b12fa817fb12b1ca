#include "engine/run/train/step_contract.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/compile/program/issues.h"
#include "engine/strings/printing.h"

namespace shale {
namespace {

double ShareOf(const Prediction& prediction, Knowledge knowledge) {
  return prediction.known[static_cast<size_t>(knowledge)];
}

// Where an instruction of a rank begins or ends: by how much the number of those that run changes.
struct Edge {
  int64_t at_ns = 0;
  int meetings = 0, others = 0;  // Collectives, and all else.
};

// How long a rank ran nothing but collectives, and how long nothing at all, between its first and its last edge.
struct Alone {
  double meeting_seconds = 0, idle_seconds = 0, span_seconds = 0;
};
Alone AloneIn(std::vector<Edge> edges) {
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at_ns < b.at_ns; });
  const auto between = [](const Edge& a, const Edge& b) { return static_cast<double>(b.at_ns - a.at_ns) * 1e-9; };
  Alone alone{.span_seconds = between(edges.front(), edges.back())};
  Edge now = edges.front();
  now.meetings = now.others = 0;
  for (const Edge& edge : edges) {
    const double passed = between(now, edge);
    if (now.others == 0) (now.meetings > 0 ? alone.meeting_seconds : alone.idle_seconds) += passed;
    now = {.at_ns = edge.at_ns, .meetings = now.meetings + edge.meetings, .others = now.others + edge.others};
  }
  return alone;
}

}  // namespace

std::string KindText(const Work& work, StreamId stream) {
  return absl::StrCat(work.kind, " (stream ", ToString(stream), ")");
}

RankTimes TimesOfRank(const StepProgram& program, const Mesh& mesh, int64_t rank,
                      absl::Span<const InstructionTime> times, double seconds) {
  if (times.empty()) return {};
  RankTimes result{.rank = rank};
  // Entries of result.seconds for instructions in their two forms.
  std::vector<double*> first(program.instructions.size()), later(program.instructions.size());
  std::vector<Edge> edges;
  for (const InstructionTime& time : times) {
    double*& kind = (time.iteration == 0 ? first : later)[time.id];
    if (kind == nullptr) {
      Instruction issued = program.instructions[time.id];
      TakeForm(issued, time.iteration == 0);
      kind = &result.seconds[KindText(WorkOf(issued, mesh), issued.stream)];
    }
    *kind += time.seconds();
    const int meets = std::holds_alternative<Collective>(program.instructions[time.id].action) ? 1 : 0;
    edges.push_back({.at_ns = time.begin_ns, .meetings = meets, .others = 1 - meets});
    edges.push_back({.at_ns = time.end_ns, .meetings = -meets, .others = meets - 1});
  }
  const Alone alone = AloneIn(std::move(edges));
  result.seconds[kBetweenInstructions] = alone.idle_seconds;
  result.seconds[kBetweenSteps] = std::max(0.0, seconds - alone.span_seconds);
  result.own_seconds = seconds - alone.meeting_seconds;
  return result;
}

StepContract::StepContract(const Job& job, const JobPlan& plan, const proto::MachineProfile& machine,
                           const RankPlaces& places)
    : program_(plan.train.step.program),
      prediction_(PredictStep(job, plan, machine, places)),
      between_steps_seconds_(machine.between_steps_seconds()),
      mesh_(plan.options.mesh),
      rates_(machine, FactsOfSeconds(job, plan.options.mesh, machine, places).layout()),
      covered_(CoveredShare(prediction_.known)) {}

double StepContract::SecondsOf(const Instruction& issued) {
  const Work work = WorkOf(issued, mesh_);
  const auto [found, added] = seconds_of_.try_emplace(WorkText(work));
  if (added) found->second = rates_.Of(work).seconds;
  return found->second;
}

bool StepContract::Add(double seconds) {
  if (++steps_ > 1) seconds_ += seconds;
  const double predicted = predicted_seconds();
  if (predicted == 0) return false;
  slow_steps_ = seconds > (1 + kSlower) * predicted ? slow_steps_ + 1 : 0;
  return slow_steps_ == kSteps;
}

std::string StepContract::Warning(const RankTimes& longest) {
  std::string text = absl::StrFormat(
      "for %d steps a step has taken more than %s, %.0f %% longer than the %s that were predicted", kSteps,
      FormatSeconds((1 + kSlower) * predicted_seconds()), 100 * kSlower, FormatSeconds(predicted_seconds()));
  if (longest.rank < 0) return text;
  const std::string what = WhatIsSlower(longest);
  const bool alone = mesh_.ranks() == 1;
  if (what.empty()) {
    return alone ? text : absl::StrCat(text, "; in the last one, rank ", longest.rank, " worked longest");
  }
  const std::string where = alone ? "" : absl::StrCat(", on rank ", longest.rank, ", which worked longest,");
  return absl::StrCat(text, "; in the last one", where, " ", what);
}

std::string StepContract::WhatIsSlower(const RankTimes& rank) {
  struct Part {
    double seconds = 0, predicted = 0;
    double beyond() const { return seconds - predicted; }
  };
  std::map<std::string, Part> kinds;
  for (const auto& [kind, seconds] : rank.seconds) kinds[kind].seconds = seconds;
  kinds[kBetweenSteps].predicted = between_steps_seconds_;
  kinds[kBetweenInstructions].predicted = prediction_.limit(Limit::kIssue);
  // All ranks run the program of this one, and what was predicted holds for each of them.
  const auto add = [&](Instruction issued, bool first_iteration, int64_t times) {
    TakeForm(issued, first_iteration);
    kinds[KindText(WorkOf(issued, mesh_), issued.stream)].predicted += static_cast<double>(times) * SecondsOf(issued);
  };
  for (const Loop& loop : program_.loops) {
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      const Instruction& instruction = program_.instructions[id];
      const bool first = instruction.first_iteration_differs && IsIssued(instruction, loop, 0);
      const int64_t later = TimesIssued(instruction, loop) - (first ? 1 : 0);
      if (first) add(instruction, /*first_iteration=*/true, 1);
      if (later > 0) add(instruction, /*first_iteration=*/false, later);
    }
  }
  std::vector<std::pair<std::string, Part>> rows(kinds.begin(), kinds.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.beyond() > b.second.beyond(); });
  constexpr size_t kMost = 3;
  constexpr double kLeast = 0.02;  // Of a step: less explains nothing.
  std::vector<std::string> lines;
  for (const auto& [name, part] : rows) {
    if (lines.size() == kMost || part.beyond() < kLeast * prediction_.step_seconds) break;
    lines.push_back(
        absl::StrCat(name, " took ", FormatSeconds(part.seconds), " instead of ", FormatSeconds(part.predicted)));
  }
  return absl::StrJoin(lines, ", ");
}

std::string StepContract::Describe() const {
  const std::string known =
      absl::StrFormat("%.0f %% of it measured, %.0f %% interpolated", 100 * ShareOf(prediction_, Knowledge::kMeasured),
                      100 * ShareOf(prediction_, Knowledge::kInterpolated));
  if (predicted_seconds() == 0) {
    return absl::StrCat("no prediction of a step's seconds: ", known, "; measure this job with calibrate --job=JOB");
  }
  std::string line =
      absl::StrCat("a step was predicted to take ", FormatSeconds(predicted_seconds()), " (", known, ")");
  if (steps_ < 2) return line;
  const double mean = seconds_ / static_cast<double>(steps_ - 1);
  absl::StrAppendFormat(&line, "; it takes %s in the mean, %+.1f %%", FormatSeconds(mean),
                        100 * (mean / predicted_seconds() - 1));
  return line;
}

}  // namespace shale
