// What a step spent its time on: every instruction, as it ran.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/program/program.h"
#include "engine/runtime/executor.h"

namespace shale {

// Collects traced steps. One thread.
class StepTrace {
 public:
  // Borrows the program; `times` are those of `rank` in step `step`.
  void Add(const StepProgram& program, int64_t step, int rank, absl::Span<const InstructionTime> times);

  // In Chrome's trace format (chrome://tracing, ui.perfetto.dev): a process for each rank, a thread for each stream,
  // and an event for each instruction, with step, unit, phase, micro-batch, the bytes it reads and writes, and its
  // FLOPs.
  std::string ChromeJson() const;

  // The same for people, of rank 0: time, FLOP/s and bytes/s by kind of instruction, the longest first, and how busy
  // each stream was.
  std::string Table() const;

  bool empty() const { return steps_ == 0; }

 private:
  struct Sum {
    int64_t count = 0;
    double seconds = 0;
    double flops = 0;
    double bytes = 0;
  };
  std::string events_;  // JSON objects, each with a comma behind it.
  std::map<std::tuple<StreamId, std::string, Phase>, Sum> sums_;
  double seconds_ = 0;  // From the first begin to the last end, over all steps of rank 0.
  int64_t steps_ = 0;
  int64_t origin_ns_ = -1;
  int ranks_ = 0;
};

}  // namespace shale
