// Traces of steps: when every instruction ran, and what it moved and computed.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/program/program.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/op_times.h"

namespace shale {

// Collects traced steps. Used by one thread.
class StepTrace {
 public:
  // Sets the time that the trace counts from, in the unit of InstructionTime. Otherwise it is the first that Add takes.
  // REQUIRES: Add has not been called.
  void SetOrigin(int64_t nanoseconds) { origin_ns_ = nanoseconds; }
  // Adds the times of `rank` in step `step`. Borrows the program during the call.
  void Add(const StepProgram& program, int64_t step, int rank, absl::Span<const InstructionTime> times);

  // Returns the trace in Chrome's format (chrome://tracing, ui.perfetto.dev): a process for each rank, a thread for
  // each stream, and an event for each instruction, with step, unit, phase, micro-batch, FLOPs, and the bytes that it
  // reads and writes, and the shapes of an op (ShapeJson). Each rank also has a counter of the arena's live bytes by
  // category. Its values are those of the plan, and it changes when an instruction of the compute stream begins.
  std::string ChromeJson() const;

  // Returns tables for people about rank 0 (OpTimes::Tables), with how busy each stream was. Empty without rank 0.
  std::string Table(const Roofline& roofline) const;

  bool empty() const { return ranks_.empty(); }

 private:
  // Returns whether a stream has a line in the outputs. Few programs use kHost.
  bool Shows(int stream) const { return static_cast<StreamId>(stream) != StreamId::kHost || uses_host_stream_; }

  std::string events_;  // JSON objects, each followed by a comma.
  OpTimes times_;       // Of rank 0.
  double seconds_ = 0;  // Sum over the steps of rank 0, each from its first begin to its last end.
  int64_t steps_ = 0;
  int64_t origin_ns_ = -1;
  std::set<int> ranks_;
  bool uses_host_stream_ = false;
};

// Returns one trace with the events of several, each a ChromeJson. REQUIRES: they count from the same time.
std::string MergeChromeJson(absl::Span<const std::string> traces);

}  // namespace shale
