// Events: what a run tells those who watch it, and who writes it down.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shale {

// Events are told in the order in which they happen. proto/events.proto has them as messages, for programs that pass
// them on.

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
  double loss_scale = 0;  // Of the next step; 0 without loss scaling (precision.compute FP16).
  int64_t skips = 0;      // Steps that loss scaling skipped in a row, up to this one.
  double seconds = 0;
  double predicted_seconds = 0;  // The prediction of `seconds`; 0: there is none (TrainerOptions::machine).
  double tokens_per_second = 0;  // Processed tokens.
  // The FLOP/s of the model, as a fraction of the peaks of all ranks (TrainerOptions). 0 if no peak is known, or if the
  // fraction is above 1.
  double mfu = 0;
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
  absl::Status thinning;    // Not OK: this checkpoint is saved, but an old one could not be removed. Process 0 only.
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
  // What failed: "start", "step", "evaluation", "generation" or "checkpoint". "run": a callback failed, or the run
  // ended without having trained anything.
  std::string culprit;
  int64_t step = 0;  // Steps done.
};

// The run ended without an error: all steps are done, or a stop was requested.
struct Finished {
  int64_t step = 0;  // Steps done.
  int64_t total_steps = 0;
  std::string ended_early;  // Why checkpoint.patience ended the run before its last step; empty if it did not.
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
  // behind an EventQueue.
  virtual void Take(const RunEvent& event) = 0;
};

// Returns the time of an event that happens now.
double UnixSecondsNow();

// Writes the events of a run somewhere outside the process, and may be slow or fail. Used by one thread at a time.
// After an error, the next call may succeed.
class EventWriter {
 public:
  virtual ~EventWriter() = default;
  virtual absl::Status Write(const RunEvent& event) = 0;
  // Called after Write when no further event waits. A writer may keep what it has until then.
  virtual absl::Status Flush() { return absl::OkStatus(); }
};

// Writes one line of JSON for each event (EventLine) to a file descriptor: a file, a pipe or a socket. Borrows it.
std::unique_ptr<EventWriter> WriteJsonTo(int fd);

// Appends such lines to the file at `path`. Creates it and its folder if they are missing.
absl::StatusOr<std::unique_ptr<EventWriter>> WriteJsonFile(const std::string& path);

// Writes the numbers of steps and evaluations to an event file for TensorBoard in `folder`. Creates the folder if it is
// missing. If a former run wrote there, TensorBoard drops what that run wrote from the first step of this one on.
absl::StatusOr<std::unique_ptr<EventWriter>> WriteTensorBoard(const std::string& folder);

// Keeps the newest numbers in the file at `path`, in Prometheus' text format, for the text file collector of its node
// exporter. Each Flush replaces the file as a whole, so that a reader never sees a part of it. Creates its folder if it
// is missing.
absl::StatusOr<std::unique_ptr<EventWriter>> WritePrometheus(const std::string& path);

// EventQueue: a sink that never makes the run wait. A thread of its own passes the events on to a writer.

// Holds up to `capacity` events that wait for the writer. If more come, it drops the newest, and counts them. An error
// of the writer ends neither the run nor the queue: the first error is kept, and later events still go to the writer.
class EventQueue : public EventSink {
 public:
  static constexpr int64_t kCapacity = 4096;
  // How long Close waits for the writer.
  static constexpr absl::Duration kMostWait = absl::Seconds(5);

  explicit EventQueue(int64_t capacity = kCapacity, absl::Duration most_wait = kMostWait);
  EventQueue(const EventQueue&) = delete;
  ~EventQueue() override { Close(); }

  // Begins to write. Events that came before wait for this. Call at most once.
  void Start(std::unique_ptr<EventWriter> writer);

  // Never waits for the writer. Safe to call from any thread. REQUIRES: not closed.
  void Take(const RunEvent& event) override;

  // Waits until all events are written, but not longer than `most_wait`; counts those that are not written by then as
  // dropped. A writer that is stuck, for instance because a file system does not answer, keeps its thread and is
  // destroyed when it returns. Does nothing if the queue is closed already.
  void Close();

  // Returns the number of events that were dropped so far.
  int64_t dropped() const;
  // Returns the first error of the writer, or OK.
  absl::Status error() const;

 private:
  struct Shared;  // What the thread and this object share; lives as long as either.
  static void WriteEvents(const std::shared_ptr<Shared>& shared, std::unique_ptr<EventWriter> writer);

  const std::shared_ptr<Shared> shared_;
  const absl::Duration most_wait_;
  std::thread thread_;
};

}  // namespace shale
