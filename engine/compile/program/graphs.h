// The graph form of a program: the work that a device captures when iterations run as graphs, as data.
//
// One graph is one iteration of a loop. Inside a graph, the other streams fork from the compute stream where they are
// first used, follow the program's waits, and join the compute stream at the end. Graphs run one after another on the
// compute stream: each one finishes before the next one starts, so waits for earlier iterations are not needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compile/program/program.h"

namespace shale {

// The stream on which graphs are launched, and from which the other streams fork.
inline constexpr StreamId kGraphOrigin = StreamId::kCompute;

// One step of the capture of a graph.
struct GraphStep {
  enum class Kind : uint8_t {
    kFork,    // `stream` waits for the beginning of the graph.
    kWait,    // `stream` waits for `instruction`, which is earlier in the graph.
    kIssue,   // `stream` runs `instruction`.
    kSignal,  // `stream` signals that `instruction` has finished; a later step waits for it.
    kJoin,    // The origin stream waits for all work on `stream`.
  };
  Kind kind = Kind::kIssue;
  StreamId stream = StreamId::kCompute;
  InstructionId instruction = -1;  // -1 for kFork and kJoin.
};

// The graphs of one loop. Iterations that do the same work at the same addresses share a graph.
class LoopGraphs {
 public:
  LoopGraphs(const StepProgram& program, size_t loop);

  // Returns the steps that the capture of an iteration performs.
  const std::vector<GraphStep>& StepsOf(int64_t iteration) const { return IsLast(iteration) ? last_steps_ : steps_; }
  // Returns a number for the graph that an iteration launches. Iterations with the same number share the graph.
  int64_t VariantOf(int64_t iteration) const;
  // Returns how many graphs the loop has.
  int64_t graphs() const;
  // Returns whether the steps of the last iteration differ. All other iterations have the same steps.
  bool last_differs() const { return last_differs_; }

 private:
  // Returns whether the iteration is the last one and differs from the others.
  bool IsLast(int64_t iteration) const { return last_differs_ && iteration + 1 == repeat_; }

  int64_t repeat_ = 1;
  bool first_differs_ = false, last_differs_ = false, slots_differ_ = false;
  std::vector<GraphStep> steps_;       // For all iterations, except a last one that differs.
  std::vector<GraphStep> last_steps_;  // For the last iteration, if it differs.
};

// Returns the graphs of every loop, in the order of the loops. Returns FailedPrecondition if the program has
// collectives: ranks that are threads of one process cannot capture them separately.
absl::StatusOr<std::vector<LoopGraphs>> CompileGraphs(const StepProgram& program);

// Returns a readable listing: for each loop, how many graphs it has and the steps of its iterations. All iterations
// have the same steps, unless the last one differs: then its steps follow those of the others.
std::string DumpGraphs(const StepProgram& program, const std::vector<LoopGraphs>& graphs);

}  // namespace shale
