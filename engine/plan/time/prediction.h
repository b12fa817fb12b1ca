// The prediction: how long a step takes on a machine, and why.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/program/program.h"
#include "engine/plan/time/clock.h"
#include "engine/plan/time/rates.h"
#include "engine/plan/time/work.h"
#include "proto/machine.pb.h"
#include "sharding/mesh.h"

namespace shale {

// MFU is the time that a step takes at the peak, as a share of the time that it takes. A job with precision.matmuls FP8
// has two peaks. So its FLOPs of fp8 matrices are divided by how much faster these are multiplied at most
// (FlopsAtPeak), and the quotient of all FLOPs and the peak of the other matmuls is the time at the peak.
//
// Returns how many times faster than other matmuls those of fp8 matrices are at most, by the two peaks. Returns 1 if
// one of them is not known, which 0 stands for.
double Float8Speed(double peak_flops, double peak_flops_fp8);
// Returns the FLOPs of which `float8_flops` multiply fp8 matrices, with these divided by `float8_speed`.
double FlopsAtPeak(double flops, double float8_flops, double float8_speed);
// Returns the fraction of the peak of `ranks` ranks, in FLOP/s each, that these FLOPs (FlopsAtPeak) in so many seconds
// are. Returns 0 if the peak is not known, which 0 stands for, or if the fraction is above 1, so that the peak is none.
double MfuOf(double flops, double seconds, double peak_flops, int64_t ranks);

// What the seconds of a step depend on beside its program and the machine.
struct StepFacts {
  Mesh mesh;
  int64_t ranks_on_host = 1;     // Ranks of the job that share a host.
  int64_t processes = 1;         // On all hosts together. Counts on CPUs.
  int64_t threads_per_rank = 1;  // On CPUs.
  bool graphs = false;           // runtime.graphs
  bool narrow = false;           // Computes in 16 bits, so that MFU refers to the peak of these.
  double tokens = 0;             // Of a step of all ranks.
  double flops_per_token = 0;    // That MFU counts.
  // The part of them that multiplies fp8 matrices, for which MFU refers to the peak of fp8.
  double float8_flops_per_token = 0;

  RankLayout layout() const { return {.ranks_on_host = ranks_on_host, .ranks = mesh.ranks(), .processes = processes}; }
};

// What takes the time of a step: the classes of works on the critical path, and what no work explains.
enum class Limit : uint8_t {
  kArithmetic,
  kMemory,
  kHost,
  kCollective,
  kCopy,
  kIssue,         // The device waits for the issue of instructions.
  kBetweenSteps,  // Reading data and reporting.
};
inline constexpr int kLimits = static_cast<int>(Limit::kBetweenSteps) + 1;
absl::string_view ToString(Limit limit);  // "matmuls and attention", "exposed communication"

// A part of the critical path.
struct PathPart {
  std::string unit;  // "blocks.*" for all units whose names differ in numbers only, "" for the step.
  std::string name;  // Of the instructions: "MatMul", "AllGather".
  double seconds = 0;
};

struct Prediction {
  std::string machine;  // The name of the profile.
  double step_seconds = 0;
  double low_seconds = 0, high_seconds = 0;  // The step lies between these, more or less.
  // The share of each kind of knowledge in the seconds that all streams are busy. They add up to 1.
  std::array<double, kKnowledges> known = {};
  double tokens_per_second = 0;
  double mfu = 0;                           // As MfuOf returns it.
  std::array<double, kLimits> limits = {};  // Seconds. They add up to step_seconds.
  std::array<double, kStreams> busy_seconds = {};
  std::vector<PathPart> path;  // The largest first.
  StepTimes times;             // Without what lies between steps.

  double limit(Limit limit) const { return limits[static_cast<size_t>(limit)]; }
};

// A step of a run that was traced, to be set beside its prediction.
struct MeasuredStep {
  int64_t step = 0;  // Of the run.
  StepTimes times;   // Of one rank: all issues in issue order, without their causes and the critical path.
};

// The seconds of a step, as in Prediction, without why.
struct StepSeconds {
  double seconds = 0;
  std::array<double, kKnowledges> known = {};
};

class ProgramWorks;  // The works of a program (prediction.cc).

// Predicts steps on one machine. Remembers how long works take, so that further programs that have the same take less
// time. Any thread may call it. Borrows the profile.
class Predictor {
 public:
  explicit Predictor(const proto::MachineProfile& profile);
  ~Predictor();

  // Predict a step of `program`, which may be symbolic. Work with any profile; what it lacks is estimated.
  Prediction Predict(const StepProgram& program, const StepFacts& facts);
  StepSeconds SecondsOf(const StepProgram& program, const StepFacts& facts) {
    return SecondsOf(program, *WorksOf(program, facts), facts);
  }
  // Returns the works of a program, which takes a good part of the time of a prediction. They do not depend on waits
  // and addresses, and are valid as long as the predictor. The functions below take those of `program`.
  std::shared_ptr<const ProgramWorks> WorksOf(const StepProgram& program, const StepFacts& facts);
  StepSeconds SecondsOf(const StepProgram& program, const ProgramWorks& works, const StepFacts& facts) const;
  // Returns the seconds of the stream that is busy longest, if nothing else runs beside it. No step of the program
  // takes less, whatever its waits are.
  double LeastSecondsOf(const StepProgram& program, const ProgramWorks& works) const;

 private:
  class Works;
  Works& WorksOf(const StepFacts& facts);
  StepTimes Run(const StepProgram& program, const ProgramWorks& works, const StepFacts& facts) const;

  const proto::MachineProfile& profile_;
  std::mutex mutex_;  // Guards works_.
  // By what their seconds depend on: the axes of the mesh, ranks on a host, processes, and threads of a rank.
  std::map<std::array<int64_t, 5>, std::unique_ptr<Works>> works_;
};

// Predicts one step.
Prediction Predict(const StepProgram& program, const StepFacts& facts, const proto::MachineProfile& profile);

}  // namespace shale
