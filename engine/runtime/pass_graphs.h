// PassGraphs: the passes of a step program as graphs of the device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/bound_program.h"
#include "engine/runtime/host_items.h"
#include "engine/runtime/rank_runtime.h"
#include "engine/step/program.h"
#include "kernels/device/device.h"

namespace shale {

// Borrows all that it is made of. A pass is captured where it is first asked for, and launched from then on. Passes of
// a section share a graph when they do the same at the same addresses: a first pass that accumulates nothing yet, a
// last one with instructions of its own, and each micro-batch's where buffers have slots for micro-batches have graphs
// of their own. Tokens come from elsewhere in each pass, and a graph's copies are set to that before a launch. So what
// is captured does not grow with the number of micro-batches, unless buffers do.
//
// A graph is launched on the compute stream and has finished when that goes on: nothing else orders passes.
class PassGraphs {
 public:
  // FailedPrecondition says why the program cannot run as graphs.
  static absl::StatusOr<std::unique_ptr<PassGraphs>> Create(const StepProgram& program, const BoundProgram& bound,
                                                            const HostItems& host_items, RankRuntime& runtime);

  // Enqueues a pass of the program's section. Capturing allocates.
  absl::Status Launch(size_t section, int64_t pass);
  // Captured so far.
  size_t size() const { return graphs_.size(); }

 private:
  struct CopyOfPass {
    InstructionId instruction = 0;
    CapturedCopy copy;
  };
  struct Captured {
    std::unique_ptr<Graph> graph;
    std::vector<CopyOfPass> copies;
    int64_t pass = 0;  // Of which the copies are.
  };
  // How the passes of a section differ.
  struct Differences {
    bool first = false, last = false, slot = false;
  };
  using Kind = std::tuple<size_t, bool, bool, int64_t>;  // Section, first, last, slot.

  PassGraphs(const StepProgram& program, const BoundProgram& bound, const HostItems& host_items, RankRuntime& runtime);
  absl::Status Capture(const Section& section, int64_t pass, Captured& captured);

  const StepProgram& program_;
  const BoundProgram& bound_;
  const HostItems& host_items_;
  RankRuntime& runtime_;
  std::vector<Differences> differences_;  // By section.
  std::map<Kind, Captured> graphs_;
};

}  // namespace shale
