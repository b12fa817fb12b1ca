// ProcessPlace: where this process stands among the processes of its job, as the launcher says that started them.
//
// A job of W ranks can run in P processes. Whoever starts the processes tells each of them its index, by variables of
// the environment whose names depend on the launcher. FindProcessPlace knows these names.
//
// FirstHost and TasksOnNodes read the lists in which Slurm describes the nodes of a job step.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Variables of an environment, by name.
using Variables = std::map<std::string, std::string, std::less<>>;

struct ProcessPlace {
  std::string launcher;  // For messages: "torchrun", "Open MPI". Empty: no launcher was found.
  int process = 0;       // From 0 to processes - 1.
  int processes = 1;
  // The index among the processes of this host, and their number. Not set if the launcher does not say.
  std::optional<int> local_process, local_processes;
  // Name or number of the host of process 0. Set if there are several processes.
  std::string address;
  // The ports that process 0 may listen on: the first of them that is free. Set if there are several processes. The
  // launcher or the user gives one port. If nobody gives one, or the launcher listens on it itself, these are ports
  // that every process derives from `launch`.
  std::vector<int> ports;
  std::string launch;  // Distinguishes this launch from others, also from earlier ones of the same job. May be empty.
  std::string note;    // Variables that were found and not used, for Describe. May be empty.

  // Whether a launcher started this process. If not, all ranks of the job are threads of this process.
  bool launched() const { return !launcher.empty(); }
  // Returns a line for people: "process 3 of 8, 1 of 4 on this host, by torchrun; process 0 is at node0:29500".
  std::string Describe() const;
};

// Finds the place of a process from the variables of its environment. Looks for launchers in this order: Shale's own,
// torchrun (or RANK and WORLD_SIZE set by hand), Open MPI, PMIx, Slurm (srun), Kubeflow, indexed Jobs of Kubernetes.
// MASTER_ADDR and MASTER_PORT complete what a launcher does not say.
//
// A launcher may start another one: srun or Kubeflow may start torchrun, once on each host. So what Shale's launcher,
// torchrun and mpirun say holds, whatever stands in the variables of others. Any other two launchers that say where
// this process is must agree. Returns InvalidArgument, with both values, if they do not or if variables of one launcher
// contradict each other, and if a variable is missing or is no number.
absl::StatusOr<ProcessPlace> FindProcessPlace(const Variables& variables);

// A program that starts processes, and the names of the environment variables by which it tells each its place. A name
// is empty if the launcher has no such variable.
struct Launcher {
  absl::string_view name;
  absl::string_view marker;  // Is set in every process that it starts, and in no other.
  absl::string_view process, processes, local_process, local_processes, address, port;
  std::vector<absl::string_view> launch;  // Their values together differ from launch to launch.
  // Whether another launcher may have started this one. The variables of that one then do not describe the processes,
  // and are ignored.
  bool inner = false;
};

// Returns the launchers in the order of FindProcessPlace.
const std::vector<Launcher>& Launchers();

// Returns the first host of a list such as "gpu[07-09,12],login1" (SLURM_STEP_NODELIST): "gpu07". Returns
// InvalidArgument if the list is malformed or empty.
absl::StatusOr<std::string> FirstHost(absl::string_view nodes);

// Returns the tasks on each node from a list such as "2(x3),1" (SLURM_STEP_TASKS_PER_NODE): {2, 2, 2, 1}. Returns
// InvalidArgument if the list is malformed or has more than 1,000,000 nodes.
absl::StatusOr<std::vector<int>> TasksOnNodes(absl::string_view tasks);

}  // namespace shale
