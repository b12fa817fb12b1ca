// Events: what a run tells those who watch it, in the order in which it happens. proto/events.proto has the same events
// as messages, for programs that pass them on.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace shale {

// The job is resolved and planned. Nothing is allocated yet.
struct PlanReady {
  std::string name;  // Of the job.
  int64_t parameters = 0;
  int64_t ranks = 0;
  int64_t accumulation_steps = 0;
  int64_t total_steps = 0;
  int64_t arena_bytes = 0;       // Device memory of one rank, allocated once.
  int64_t host_arena_bytes = 0;  // Pinned host memory of one rank.
};

// A part of the start-up begins.
enum class StartStage {
  kAllocating,  // Arenas, communicators, and the first use of libraries.
  kLoading,     // Initial weights: from a Hugging Face folder, or drawn at random.
  kRestoring,   // A checkpoint.
  kFirstStep,   // The first step of this process, which is slower than later ones.
};
struct Progress {
  StartStage stage = StartStage::kAllocating;
};

// A value that the program adds to the report of a step (Trainer::AddMetric).
struct UserMetric {
  std::string name;
  double value = 0;
};

// A step is done.
struct StepReport {
  int64_t step = 0;              // Counted from 1.
  int64_t tokens = 0;            // Valid target tokens so far, over all ranks and steps.
  int64_t step_tokens = 0;       // Valid target tokens of this step.
  int64_t processed_tokens = 0;  // Tokens of this step's samples, whether they are targets that count or not.
  double loss = 0;           // Divided by what TargetWeights says: the valid tokens or the weights of the global batch.
  double step_weight = 0;    // The sum of |weight| over the global batch; 0 without weights.
  double gradient_norm = 0;  // Before clipping.
  double learning_rate = 0;
  // False if no token was valid, if all weights were 0, or if loss or gradient were not finite and the step was
  // skipped.
  bool updated = true;
  double seconds = 0;
  double tokens_per_second = 0;     // Processed tokens.
  double mfu = 0;                   // Fraction of peak_flops x ranks; 0 if no peak is known, or if it is above 1.
  int64_t peak_bytes_planned = 0;   // Per rank.
  int64_t peak_bytes_measured = 0;  // The largest of any rank so far.
  std::vector<UserMetric> metrics;  // Ascending by name.
};

// The loss on one source of an evaluation.
struct SourceLoss {
  std::string name;
  double loss = 0;  // Divided as in StepReport.
  int64_t tokens = 0;
};

// An evaluation is done.
struct EvaluationReport {
  int64_t step = 0;  // Steps done.
  double loss = 0;   // Of all sources together. Divided as in StepReport.
  int64_t tokens = 0;
  std::vector<SourceLoss> sources;  // In the order of the job. Empty without data.evaluation_sources.
};

// A save has ended.
struct CheckpointReport {
  int64_t step = 0;
  absl::Status status;      // Not OK: this checkpoint was not saved; earlier ones are unchanged.
  absl::Status thinning;    // Not OK: the checkpoint is saved, but an old one could not be pruned. Process 0 only.
  std::string path;         // Empty if status is not OK.
  int64_t bytes = 0;        // Size of all shard files together.
  double seconds = 0;       // From the request until the checkpoint was committed.
  double stop_seconds = 0;  // The part of `seconds` during which no step could run.
};

// Something went wrong, and the run goes on without it.
struct Warning {
  std::string text;
};

// The run ended with an error.
struct Failure {
  absl::Status status;
  std::string
      culprit;       // What failed: "start", "step", "evaluation", "generation", "checkpoint", or "run" for a callback.
  int64_t step = 0;  // Steps done.
};

// The run ended without an error: all steps are done, or a stop was requested.
struct Finished {
  int64_t step = 0;  // Steps done.
  int64_t total_steps = 0;
  std::string ended_early;  // Why the run ended before its last step, if its patience did; else empty.
};

struct RunEvent {
  double unix_seconds = 0;  // Since 1970-01-01 00:00 UTC.
  std::variant<PlanReady, Progress, StepReport, EvaluationReport, CheckpointReport, Warning, Failure, Finished> what;
};

// Takes the events of a run.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Called on the thread that uses the trainer, by one thread at a time. The run waits for it: what may be slow belongs
  // behind an EventQueue (engine/events/event_queue.h).
  virtual void Take(const RunEvent& event) = 0;
};

// Returns the time of an event that happens now.
double UnixSecondsNow();

}  // namespace shale
