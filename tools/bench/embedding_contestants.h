// The contestants of the embedding bench: trainers of one job, each stepped as a program of another kind does it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

// One step. `inside` is what the engine itself measures (StepReport::seconds).
struct TimedStep {
  double seconds = 0, inside = 0, loss = 0;
};

class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual absl::StatusOr<TimedStep> Step() = 0;
  // Makes the smallest call of a trainer `count` times and returns the seconds of one: that of its state, which only
  // finds the trainer and reads a few numbers. Returns 0 where this is no call across an interface.
  virtual absl::StatusOr<double> SmallCall(int64_t count) = 0;
};

// Where the job of a contestant comes from.
struct BenchJob {
  std::string path;
  std::vector<std::string> overrides;
};

// A program in C++, whose job has data.path.
absl::StatusOr<std::unique_ptr<Contestant>> StepInCpp(const BenchJob& job);
// The same with data of its own: `tokens` in memory, cut into samples as a file with these tokens is.
absl::StatusOr<std::unique_ptr<Contestant>> StepOnMemory(const BenchJob& job, std::vector<int32_t> tokens);
// A program that calls the C interface.
absl::StatusOr<std::unique_ptr<Contestant>> StepInC(const BenchJob& job);

struct PythonOptions {
  std::string interpreter, script, package, library;
};
// A process of Python, which runs tools/bench/embedding.py. Its times are those that it measures itself.
absl::StatusOr<std::unique_ptr<Contestant>> StepInPython(const BenchJob& job, const PythonOptions& options);

// The seconds that a source takes to read one sample, alone.
struct ReadSeconds {
  double file = 0, memory = 0;
};
absl::StatusOr<ReadSeconds> MeasureReads(const std::string& text_file, const std::vector<int32_t>& tokens,
                                         int64_t sequence_length, int64_t count);

}  // namespace shale
