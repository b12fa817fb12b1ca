// The parts of a trainer (engine/api/trainer.h): its state, the generation of text from live weights, its trace, and
// its devices. The trainer owns them, and hands them out. They may be used where the trainer may be used: by one thread
// at a time, between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/model.h"
#include "engine/api/sampler.h"

namespace shale {

class ControlPlane;
class LocalProgram;
class LocalRanks;
class LocalState;
class NextTokens;
class RunHealth;
class Sequences;
class StepTrace;
class WorkTimes;
struct StepProgram;
struct TrainerOptions;

// Reads and writes parameters, gradients and optimizer states as fp32, in row-major order: all elements of a parameter,
// or `values.size()` of them from element `begin` on. The next step uses what was written. What the ranks keep in fewer
// bits than fp32 is rounded when it is written, and reading returns the rounded value.
//
// With several processes each writes the ranks that it holds, so all must write the same. Reading returns
// FailedPrecondition if ranks of other processes hold some of the elements.
//
// Functions return NotFound with the nearest name, OutOfRange (InvalidArgument without `begin`) for elements that do
// not exist, and FailedPrecondition if a failure left the state unusable; for writing also if no step may follow.
class TrainerState {
 public:
  const std::vector<Parameter>& parameters() const;

  // The trained weights: the masters, if there are any.
  absl::Status ReadParameter(absl::string_view name, absl::Span<float> values) const;
  absl::Status ReadParameter(absl::string_view name, int64_t begin, absl::Span<float> values) const;
  absl::Status WriteParameter(absl::string_view name, absl::Span<const float> values);
  absl::Status WriteParameter(absl::string_view name, int64_t begin, absl::Span<const float> values);

  // The reduced gradient of the last step, before clipping and without the loss scale. Return FailedPrecondition unless
  // the job keeps gradients (memory.keep_gradients), and for a frozen parameter (Parameter::frozen).
  absl::Status ReadGradient(absl::string_view name, absl::Span<float> values) const;
  absl::Status ReadGradient(absl::string_view name, int64_t begin, absl::Span<float> values) const;

  // The states that the optimizer keeps for each parameter, by the names that optimizer_states() returns, such as "m"
  // and "v" of AdamW. A parameter has the states of the rule that updates it. A state has as many elements as its
  // parameter, with two exceptions: "row_moments" and "column_moments" of ADAFACTOR have one for each row and each
  // column of a matrix, and the scales of 8-bit moments have one for each block. Return NotFound for a state that the
  // parameter does not have, and FailedPrecondition for states in 8 bits, whose elements share scales, and for a frozen
  // parameter.
  std::vector<std::string> optimizer_states() const;
  absl::StatusOr<int64_t> OptimizerStateElements(absl::string_view state, absl::string_view parameter) const;
  absl::Status ReadOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                  absl::Span<float> values) const;
  absl::Status WriteOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                   absl::Span<const float> values);

 private:
  friend class Session;
  // Is called before each write. `frozen` says whether the value of a frozen parameter is written.
  using BeforeWrite = std::function<void(bool frozen)>;
  TrainerState(LocalState& state, const RunHealth& health, BeforeWrite before_write);
  absl::StatusOr<const LocalState*> Readable() const;
  absl::StatusOr<LocalState*> Writable(absl::string_view parameter);
  // Reads a part of a gradient, without the loss scale.
  absl::Status ReadUnscaled(const LocalState& state, int id, int64_t begin, absl::Span<float> values) const;

  LocalState& state_;
  const RunHealth& health_;
  const BeforeWrite before_write_;
  double gradient_scale_ = 1;  // The loss scale of the last step that began; 1 without loss scaling.
};

// Generates from the weights as they are now, in the memory that steps use. The job must plan generation
// (runtime.generate). Every rank computes the same. With several processes all must make the same calls.
//
// The logits have the bits of Generator::Logits on a checkpoint of this state, where ops do not depend on the number of
// threads. With a cache, each token is computed once. A model without a cache costs a forward pass over sequence_length
// tokens for each new token.
//
// Functions return FailedPrecondition unless the job plans generation, or if a failure left the state unusable, and
// InvalidArgument for an empty context or a token outside the vocabulary.
class LiveGenerator {
 public:
  // Returns the logits of the token that follows `context`, for each token of the vocabulary, computed from as many of
  // its last tokens as a sequence may hold. Valid until the next call.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);
  // Draws `count` tokens after `prompt` and calls `emit` with each as it is drawn. Stops early if `emit` returns false,
  // which it must do alike in all processes. Returns DataLoss if a logit is NaN or +infinity.
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);

 private:
  friend class Session;
  // `sequences` is null if the job plans no generation.
  LiveGenerator(Sequences* sequences, RunHealth& health) : sequences_(sequences), health_(health) {}
  // Calls generate(next_tokens), unless the state is unusable or the job plans no generation.
  absl::Status WithNextTokens(absl::FunctionRef<absl::Status(NextTokens&)> generate);

  Sequences* const sequences_;
  RunHealth& health_;
};

// The trace of the steps that TraceOptions names.
class TrainerTrace {
 public:
  ~TrainerTrace();
  // Writes the trace so far to TraceOptions::path, and its tables beside it. Trainer::Run calls it at its end; with one
  // process, Trainer::Step does so after the last traced step. Returns FailedPrecondition if nothing was traced.
  absl::Status Write() const;
  // Returns the trace so far as tables (StepTrace::Table); empty if nothing was traced.
  std::string Table() const;

 private:
  friend class Session;
  // Reads `options.trace`, and the peaks of a rank.
  TrainerTrace(const TrainerOptions& options, ControlPlane& control);
  // Begins step `number` of this trainer, from 1. Returns whether it is traced.
  absl::StatusOr<bool> BeginStep(int64_t number);
  // Adds the times of step `step` of the run, which was traced.
  void Add(const StepProgram& program, int64_t step, LocalRanks& ranks, const LocalProgram& train);
  // Call after the report of a step, which took `seconds`. Adds the times of a traced step to works_. Writes the trace
  // if it is complete, so that it is there even if the process is killed later.
  void EndStep(const StepProgram& program, LocalRanks& ranks, const LocalProgram& train, double seconds);
  // Lets the traces of all processes count from the same time.
  absl::Status AgreeOnOrigin();
  bool empty() const;
  // Returns which steps are traced, which must be the same in all processes.
  std::string Describe() const;

  const std::unique_ptr<const TraceOptions> options_;
  const double peak_flops_, peak_flops_fp8_;
  ControlPlane& control_;
  const std::unique_ptr<StepTrace> trace_;
  WorkTimes* works_ = nullptr;  // Gets the times of traced steps. May be null (CollectWorkTimes).
  int64_t left_;                // Steps to trace, or -1 once the trace was written.
  bool traces_ = false;         // The current step is traced.
};

// What a trainer knows of the devices of this process.
struct TrainerDevices {
  // The devices and libraries that the job runs on (Backend::Describe), with what has taken the devices' memory outside
  // the arenas. May be empty.
  std::string description;
  // The resident memory of the process outside the arenas (code, libraries, data buffers), measured just before the
  // arenas were allocated. 0 if the system does not report it.
  int64_t overhead_bytes = 0;
  // Trainer::Create checks that the device has enough free memory, and leaves some free for what is taken later
  // (Backend::late_bytes). If more than that was taken by the end of the first step, this is a line that says how much
  // more. Otherwise empty.
  std::string late_memory;
  // A line about how long a step was predicted to take and, after some steps, how long they take. Says so if too little
  // of the step was measured to predict it. Empty without TrainerOptions::machine.
  std::string step_time;
  // A line if the last step was the 20th in a row in which some ranks took more than 20 % longer than the median rank,
  // and otherwise empty. Of several processes, only process 0 has the line. Only ranks on CPUs are compared.
  std::string slow_ranks;
};

}  // namespace shale
