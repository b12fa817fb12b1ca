// WorkTimes: how long each work took, in steps that were traced. Profiles of machines are made of it. See [Note: times
// of a step] in engine/run/runtime/executor.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/compile/program/program.h"
#include "engine/plan/time/work.h"
#include "engine/run/runtime/executor.h"
#include "engine/run/runtime/local_ranks.h"
#include "sharding/mesh.h"

namespace shale {

// Returns the mean of `values`, and half of the distance between their quartiles. REQUIRES: they are not empty. A step
// takes the sum of the means of its works; the sum of their medians leaves out what interrupts them now and then.
struct MeanAndSpread {
  double mean = 0, spread = 0;
};
MeanAndSpread MeanOf(std::vector<double> values);

// Returns the times of the last run of a program, in each rank of this process, if it was traced.
std::vector<absl::Span<const InstructionTime>> TimesOfRanks(const LocalRanks& ranks, const LocalProgram& program);

// Used by one thread.
class WorkTimes {
 public:
  struct Samples {
    Work work;
    StreamId stream = StreamId::kCompute;  // Of the first one.
    int64_t issues = 0;                    // In one rank, over all steps.
    // Of every issue in every rank. A collective has one for all ranks of the process: from the time at which the last
    // of them has come to it. What the others wait for that is not its own time.
    std::vector<double> seconds;
  };

  // Adds a traced step: the times of each rank of this process, in issue order. `seconds` is how long the step took,
  // with what lies before and after its program.
  void Add(const StepProgram& program, const Mesh& mesh, absl::Span<const absl::Span<const InstructionTime>> ranks,
           double seconds);

  int64_t steps() const { return steps_; }
  const std::map<std::string, Samples>& works() const { return works_; }  // By WorkText.

  // Return the middle of what was added, 0 before the first step: what passes between two instructions of the compute
  // stream if the second one waits for no other stream; what a step takes beside its program.
  double issue_seconds() const;
  double between_steps_seconds() const;
  // Returns how long ranks wait at collectives for the last of them, as a share of the time since the last collective
  // of the same stream.
  double rank_spread() const;

 private:
  Samples& SamplesOf(const StepProgram& program, const Mesh& mesh, const InstructionTime& time);

  int64_t steps_ = 0;
  std::map<std::string, Samples> works_;
  std::vector<double> gaps_, beside_;
  double waited_seconds_ = 0, between_collectives_seconds_ = 0;
};

}  // namespace shale
