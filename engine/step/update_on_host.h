// HostUpdater: emits the instructions that update groups on the host.
//
// [Note: update on the host] With UpdateDevice::kHost, masters, moments and a copy of the weights stay in host memory.
// Only gradients go there and only weights come back, on the copy stream. The update runs on StreamId::kHost:
//
//   copy   gradient 0, gradient 1     gradient 2, weight 0   gradient 3, weight 1   ...
//   host                   update 0   update 1               update 2               ...
//
// So the gradient of the next group and the weights of the group before move while a group is updated, and host memory
// holds the gradients of two groups. Norms, clipping and the decision to skip are computed on the device, and update 0
// is preceded by a copy of a few scalars, on the host stream. A skipped update leaves the weights in host memory as
// they are, and their copy back changes nothing.
//
// With IN_BACKWARD the gradient of a group goes to the host before the backward of the next unit, or on one rank right
// after its own backward, and the weights of a group come back after the next unit's backward. A gradient keeps its
// bytes in the arena for that long, so that no backward has to wait for the copy.
#pragma once

#include <vector>

#include "engine/step/options.h"
#include "engine/step/state.h"
#include "engine/step/writer.h"

namespace shale {

// Used by Updater alone. Borrows the references that the constructor takes.
class HostUpdater {
 public:
  HostUpdater(const StepOptions& options, const JobState& state, ProgramWriter& writer)
      : options_(options), state_(state), writer_(writer), gradients_(state.groups.size()) {}

  // Emits the copy of a group's gradient to host memory, unless it was emitted before. Call it when the gradient is
  // complete.
  void FetchGradient(GroupId group);
  // Call after the backward of a unit, with IN_BACKWARD. Gradients that were copied before need their bytes no longer.
  void EndOverlap();
  // Emits the update of a group, with all that must come before it. `op` is the group's Update as the device would run
  // it.
  void EmitUpdate(GroupId group, Op op);
  // Call after the last update. Emits what is still missing.
  void Finish();

 private:
  // Returns the copy in host memory of a scalar that the device has computed. Emits it if there is none yet.
  Tensor Scalar(const Tensor& device);
  // Emits the copy of the weights of the last updated group to the device, and the all-gather after it.
  void ReturnWeights();

  const StepOptions& options_;
  const JobState& state_;
  ProgramWriter& writer_;
  std::vector<Tensor> gradients_;  // In host memory, by group. Absent if there is no copy yet.
  std::vector<BufferId> held_;     // Gradients in the arena that are being copied.
  struct Copied {
    Tensor device, host;
  };
  std::vector<Copied> scalars_;
  GroupId updated_ = -1;  // The group whose weights are not back yet, or -1.
};

}  // namespace shale
