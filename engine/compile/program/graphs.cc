#include "engine/compile/program/graphs.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"

namespace shale {
namespace {

// Returns the steps that the capture of one iteration performs.
std::vector<GraphStep> StepsOfIteration(const StepProgram& program, size_t loop, int64_t iteration) {
  const InstructionId begin = program.loops[loop].begin, end = program.loops[loop].end;
  // awaited[id - begin]: whether a later instruction of the same iteration waits for `id`.
  std::vector<bool> issued(end - begin, false), awaited(end - begin, false);
  const auto in_graph = [&](InstructionId id) { return id >= begin && id < end && issued[id - begin]; };
  for (const Issue& issue : IssuesOfIteration(program, loop, iteration)) {
    for (InstructionId wait : program.instructions[issue.id].waits) {
      if (in_graph(wait)) awaited[wait - begin] = true;
    }
    issued[issue.id - begin] = true;
  }
  std::vector<GraphStep> steps;
  std::array<bool, kStreams> forked = {};
  forked[static_cast<int>(kGraphOrigin)] = true;
  std::fill(issued.begin(), issued.end(), false);
  for (const Issue& issue : IssuesOfIteration(program, loop, iteration)) {
    const Instruction& instruction = program.instructions[issue.id];
    if (bool& here = forked[static_cast<int>(instruction.stream)]; !here) {
      steps.push_back({GraphStep::Kind::kFork, instruction.stream});
      here = true;
    }
    // All other waits of the instruction name instructions of earlier graphs, which have finished.
    for (InstructionId wait : instruction.waits) {
      if (in_graph(wait)) steps.push_back({GraphStep::Kind::kWait, instruction.stream, wait});
    }
    steps.push_back({GraphStep::Kind::kIssue, instruction.stream, issue.id});
    issued[issue.id - begin] = true;
    if (awaited[issue.id - begin]) steps.push_back({GraphStep::Kind::kSignal, instruction.stream, issue.id});
  }
  for (int s = 0; s < kStreams; ++s) {
    if (!forked[s] || s == static_cast<int>(kGraphOrigin)) continue;
    steps.push_back({GraphStep::Kind::kJoin, static_cast<StreamId>(s)});
  }
  return steps;
}

absl::string_view ToString(GraphStep::Kind kind) {
  switch (kind) {
    case GraphStep::Kind::kFork: return "fork";
    case GraphStep::Kind::kWait: return "wait for";
    case GraphStep::Kind::kIssue: return "run";
    case GraphStep::Kind::kSignal: return "signal";
    case GraphStep::Kind::kJoin: return "join";
  }
  return "?";
}

// Returns a line for each step.
std::string DumpSteps(const StepProgram& program, const std::vector<GraphStep>& steps) {
  std::string text;
  for (const GraphStep& step : steps) {
    absl::StrAppend(&text, "  ", ToString(step.stream), "  ", ToString(step.kind));
    if (step.instruction >= 0) {
      absl::StrAppend(&text, " ", step.instruction, " (", NameOf(program.instructions[step.instruction]), ")");
    }
    text += "\n";
  }
  return text;
}

}  // namespace

LoopGraphs::LoopGraphs(const StepProgram& program, size_t index) {
  const Loop& loop = program.loops[index];
  repeat_ = loop.repeat;
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    const Instruction& instruction = program.instructions[id];
    first_differs_ |= instruction.first_iteration_differs;
    last_differs_ |= TimesIssued(instruction, loop) < loop.repeat;
    slots_differ_ |= UsesSlots(program, instruction);
  }
  steps_ = StepsOfIteration(program, index, 0);
  if (last_differs_) last_steps_ = StepsOfIteration(program, index, repeat_ - 1);
}

int64_t LoopGraphs::VariantOf(int64_t iteration) const {
  if (slots_differ_) return iteration;
  if (IsLast(iteration)) return 2;
  return first_differs_ && iteration > 0 ? 1 : 0;
}

int64_t LoopGraphs::graphs() const {
  if (slots_differ_) return repeat_;
  // The middle iterations have a graph of their own only if some of them differ from both the first and the last.
  const int64_t middle = repeat_ - (last_differs_ ? 1 : 0);
  const int64_t before_last = first_differs_ ? std::min<int64_t>(middle, 2) : std::min<int64_t>(middle, 1);
  return before_last + (last_differs_ ? 1 : 0);
}

absl::StatusOr<std::vector<LoopGraphs>> CompileGraphs(const StepProgram& program) {
  for (const Instruction& instruction : program.instructions) {
    if (!std::holds_alternative<Collective>(instruction.action)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "runtime.graphs wants one rank, found ", NameOf(instruction),
        " between several: ranks that are threads of one process cannot capture their collectives apart; set "
        "runtime.graphs=false"));
  }
  std::vector<LoopGraphs> graphs;
  for (size_t loop = 0; loop < program.loops.size(); ++loop) graphs.emplace_back(program, loop);
  return graphs;
}

std::string DumpGraphs(const StepProgram& program, const std::vector<LoopGraphs>& graphs) {
  std::string text = "graphs\n";
  for (size_t loop = 0; loop < graphs.size(); ++loop) {
    const Loop& of = program.loops[loop];
    absl::StrAppend(&text, "\nloop of instructions ", of.begin, " to ", of.end - 1, ": ", graphs[loop].graphs(),
                    graphs[loop].graphs() == 1 ? " graph, launched " : " graphs, launched ", of.repeat,
                    of.repeat == 1 ? " time\n" : " times\n");
    const int64_t last = of.repeat - 1;
    if (graphs[loop].last_differs()) {
      absl::StrAppend(&text, last == 1 ? "iteration 0" : absl::StrCat("iterations 0 to ", last - 1), ":\n",
                      DumpSteps(program, graphs[loop].StepsOf(0)), "iteration ", last, ":\n");
    }
    text += DumpSteps(program, graphs[loop].StepsOf(last));
  }
  return text;
}

}  // namespace shale
