// The graph form of a program: what a device captures when iterations run as graphs, as data.
//
// One graph is one iteration of a loop. Within it, streams are forked from the compute stream where they are first
// used, ordered by the program's waits, and joined to the compute stream at the end. Between graphs the compute stream
// alone gives the order: a graph has finished before the next one starts, so that waits for an earlier iteration fall
// away.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/program/program.h"

namespace shale {

// The stream on which graphs are launched and from which the others fork.
inline constexpr StreamId kGraphOrigin = StreamId::kCompute;

struct GraphStep {
  enum class Kind : uint8_t {
    kFork,    // `stream` waits for the beginning of the graph.
    kWait,    // `stream` waits for `instruction`, an earlier one of the graph.
    kIssue,   // `stream` runs `instruction`.
    kSignal,  // `stream` signals that `instruction` has finished: a later step waits for it.
    kJoin,    // The origin waits for all of `stream`.
  };
  Kind kind = Kind::kIssue;
  StreamId stream = StreamId::kCompute;
  InstructionId instruction = -1;  // kFork and kJoin: none.
};

// The graphs of one loop. Iterations that do the same at the same addresses share a graph.
class LoopGraphs {
 public:
  LoopGraphs(const StepProgram& program, size_t loop);

  // The steps that one iteration captures.
  const std::vector<GraphStep>& StepsOf(int64_t iteration) const { return IsLast(iteration) ? last_steps_ : steps_; }
  // Names the graph that an iteration launches: iterations with equal variants share it.
  int64_t VariantOf(int64_t iteration) const;
  // How many graphs the loop has.
  int64_t graphs() const;

 private:
  // Whether the iteration is a last one that differs from the others.
  bool IsLast(int64_t iteration) const { return last_differs_ && iteration + 1 == repeat_; }

  int64_t repeat_ = 1;
  bool first_differs_ = false, last_differs_ = false, slots_differ_ = false;
  std::vector<GraphStep> steps_;       // Of all iterations but a last one that differs.
  std::vector<GraphStep> last_steps_;  // Of the last one, if it differs.
};

// Returns the graphs of every loop. FailedPrecondition: the program has collectives, which ranks that are threads of
// one process cannot capture apart.
absl::StatusOr<std::vector<LoopGraphs>> CompileGraphs(const StepProgram& program);

// Returns a readable listing of the graphs and their steps.
std::string DumpGraphs(const StepProgram& program, const std::vector<LoopGraphs>& graphs);

}  // namespace shale
