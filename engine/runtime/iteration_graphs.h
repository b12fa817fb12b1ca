// IterationGraphs: captures a program's iterations as graphs of the device and launches them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/program/graphs.h"
#include "engine/program/program.h"
#include "engine/runtime/bound_program.h"
#include "engine/runtime/host_items.h"
#include "engine/runtime/rank_runtime.h"
#include "kernels/device/device.h"

namespace shale {

// Borrows everything it is given. Captures all graphs when it is created, because they take memory of the device;
// engine/program/graphs.h says which iterations share a graph and what a graph does. Every iteration reads its tokens
// from its own place in host memory, so the copies in a shared graph are set to that place before each launch. The
// number of graphs does not grow with the number of micro-batches, unless buffers have a slot for each.
//
// Launches on the compute stream. Later work on that stream starts after the whole graph has finished.
class IterationGraphs {
 public:
  // Returns FailedPrecondition, with the reason, if the program cannot run as graphs.
  static absl::StatusOr<std::unique_ptr<IterationGraphs>> Create(const StepProgram& program, const BoundProgram& bound,
                                                                 const HostItems& host_items, RankRuntime& runtime);

  // Enqueues one iteration of the loop with index `loop`.
  absl::Status Launch(size_t loop, int64_t iteration);
  // Returns how many graphs there are.
  size_t size() const { return graphs_.size(); }

 private:
  struct HostCopyNode {
    InstructionId instruction = 0;
    CapturedCopy copy;
  };
  struct Captured {
    std::unique_ptr<Graph> graph;
    std::vector<HostCopyNode> copies;
    int64_t iteration = 0;  // The iteration whose copies are set in the graph now.
  };

  IterationGraphs(std::vector<LoopGraphs> loops, const BoundProgram& bound, const HostItems& host_items,
                  RankRuntime& runtime);
  // Captures the graph of an iteration, unless an earlier one has the same.
  absl::Status CaptureOnce(size_t loop, int64_t iteration);
  absl::Status Capture(const std::vector<GraphStep>& steps, int64_t iteration, Captured& captured);
  absl::Status Enqueue(InstructionId id, int64_t iteration, Captured& captured);

  const std::vector<LoopGraphs> loops_;
  const BoundProgram& bound_;
  const HostItems& host_items_;
  RankRuntime& runtime_;
  std::map<std::pair<size_t, int64_t>, Captured> graphs_;  // By loop and LoopGraphs::VariantOf.
};

}  // namespace shale
