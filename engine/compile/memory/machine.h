// The properties of a machine that planning needs: its ops, and how much memory a job may plan for one rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu_matmuls.h"
#include "kernels/op_backend.h"

namespace shale {

namespace proto {
class MachineProfile;
}  // namespace proto

// A budget that is never exceeded.
inline constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max();

struct Budget {
  int64_t bytes = kNoBudget;       // For the arena of one rank.
  std::string origin;              // Source of `bytes` if the job does not set it: "80 % of this machine's memory".
  int64_t host_bytes = kNoBudget;  // For the tensors that one rank offloads to host memory.
  std::string host_origin;
  bool firm = false;  // Whether larger budgets that the job sets are ignored.

  bool Holds(int64_t arena_bytes, int64_t offload_bytes) const {
    return arena_bytes <= bytes && offload_bytes <= host_bytes;
  }
  // Returns by how many bytes the budgets are exceeded, summed over both. Rounded to double.
  double Missing(int64_t arena_bytes, int64_t offload_bytes) const {
    return std::max(0.0, static_cast<double>(arena_bytes) - static_cast<double>(bytes)) +
           std::max(0.0, static_cast<double>(offload_bytes) - static_cast<double>(host_bytes));
  }
};

inline constexpr int kBlackwellMajor = 10;  // Compute capability.

// What CUDA and its libraries take of a GPU beside the arenas, with some room for what is allocated late. On an H200, a
// context with all kernels loaded took 542 MiB, cuBLASLt 396 and cuDNN 14. The others were not measured yet; the GPU
// kit (tools/gpu) measures them. NCCL has up to three communicators for a GPU, each with buffers for its channels, and
// with up to 256 MiB where it uses NVLink SHARP. GPUs since Blackwell have more SMs than Hopper, for which a context
// reserves memory, and their libraries have more code.
constexpr int64_t GpuLibraryBytes(bool nccl, int compute_major) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  return 2 * kGiB + (nccl ? kGiB : 0) + (compute_major >= kBlackwellMajor ? kGiB : 0);
}

// A function that returns the budget of each rank when `ranks` ranks run on this machine and the job sets none, or an
// error if that many cannot run here.
using DefaultBudget = std::function<absl::StatusOr<Budget>(int64_t ranks)>;

struct Machine {
  // Creates the ops of one rank when `ranks` ranks share the machine and its cores. Planning only asks them for sizes.
  // Must be set.
  std::function<std::unique_ptr<Ops>(int64_t ranks)> create_ops;
  DefaultBudget default_budget;                // If empty, there is no limit.
  int64_t hardware_threads = 1;                // Threads that its CPUs run at once, for all ranks together.
  CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto;  // Of `create_ops`, if its ops run on the CPU.
  // The most ranks that it has room for. A job with more is refused, and none is advised to have more.
  int64_t most_ranks = std::numeric_limits<int64_t>::max();

  std::string name = "";  // "h100x8", if it is another machine than this one.
  // How fast it is (engine/plan/time/profile.h), so that the seconds of steps can be predicted. Null: not known.
  std::shared_ptr<const proto::MachineProfile> profile;
  int64_t hosts = 0;  // On how many of them the ranks run, as in StepFactsOf (engine/plan/planner/step_facts.h).

  // Returns the same machine with no limit on memory.
  Machine WithoutBudget() const {
    Machine machine = *this;
    machine.default_budget = nullptr;
    return machine;
  }
};

}  // namespace shale
