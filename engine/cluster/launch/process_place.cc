#include "engine/cluster/launch/process_place.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"
#include "kernels/hash.h"

namespace shale {
namespace {

constexpr absl::string_view kMasterAddress = "MASTER_ADDR", kMasterPort = "MASTER_PORT";

const std::string* Find(const Variables& variables, absl::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() || found->second.empty() ? nullptr : &found->second;
}

// Returns "NAME=value", or "no NAME".
std::string Show(const Variables& variables, absl::string_view name) {
  const std::string* value = Find(variables, name);
  return value == nullptr ? absl::StrCat("no ", name) : absl::StrCat(name, "=", *value);
}

absl::StatusOr<std::optional<int>> Number(const Variables& variables, absl::string_view name, int least, int most) {
  const std::string* value = name.empty() ? nullptr : Find(variables, name);
  if (value == nullptr) return std::nullopt;
  int number = 0;
  if (!absl::SimpleAtoi(*value, &number) || number < least || number > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted a number from ", least, " to ", most, " in ", name, ", found ", Quoted(*value)));
  }
  return number;
}

constexpr int kMostProcesses = 1 << 24;

// Returns InvalidArgument if an index is not below the count of which it is one.
absl::Status CheckIndex(const Variables& variables, int index, absl::string_view index_name, int count,
                        absl::string_view count_name) {
  if (index < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Show(variables, index_name), " contradicts ", Show(variables, count_name), ": indices begin at 0"));
}

// Reads how many tasks of the step run on this node.
absl::Status CompleteSlurm(const Variables& variables, ProcessPlace& place) {
  const std::string* list = Find(variables, "SLURM_STEP_TASKS_PER_NODE");
  SHALE_ASSIGN_OR_RETURN(const std::optional<int> node, Number(variables, "SLURM_NODEID", 0, kMostProcesses));
  if (list == nullptr || !node.has_value()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::vector<int> tasks, TasksOnNodes(*list));
  int64_t sum = 0;
  for (const int on_node : tasks) sum += on_node;
  if (sum != place.processes) {
    return absl::InvalidArgumentError(absl::StrCat(Show(variables, "SLURM_STEP_TASKS_PER_NODE"), " contradicts ",
                                                   Show(variables, "SLURM_STEP_NUM_TASKS"), ": they are ", sum,
                                                   " tasks"));
  }
  SHALE_RETURN_IF_ERROR(
      CheckIndex(variables, *node, "SLURM_NODEID", static_cast<int>(tasks.size()), "SLURM_STEP_TASKS_PER_NODE"));
  place.local_processes = tasks[*node];
  return absl::OkStatus();
}

// Reads the numbers that a launcher gives to a process.
absl::StatusOr<ProcessPlace> ReadNumbers(const Launcher& launcher, const Variables& variables) {
  ProcessPlace place{.launcher = std::string(launcher.name)};
  SHALE_ASSIGN_OR_RETURN(const auto process, Number(variables, launcher.process, 0, kMostProcesses - 1));
  SHALE_ASSIGN_OR_RETURN(const auto processes, Number(variables, launcher.processes, 1, kMostProcesses));
  if (!process.has_value() || !processes.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("wanted ", launcher.process, " and ", launcher.processes, " from ",
                                                   launcher.name, ", found ", Show(variables, launcher.process),
                                                   " and ", Show(variables, launcher.processes),
                                                   "; set both, or neither for a job of one process"));
  }
  place.process = *process;
  place.processes = *processes;
  SHALE_RETURN_IF_ERROR(CheckIndex(variables, *process, launcher.process, *processes, launcher.processes));
  SHALE_ASSIGN_OR_RETURN(place.local_process, Number(variables, launcher.local_process, 0, kMostProcesses - 1));
  SHALE_ASSIGN_OR_RETURN(place.local_processes, Number(variables, launcher.local_processes, 1, kMostProcesses));
  if (launcher.name == "Slurm") SHALE_RETURN_IF_ERROR(CompleteSlurm(variables, place));
  if (place.local_process.has_value() && place.local_processes.has_value()) {
    SHALE_RETURN_IF_ERROR(
        CheckIndex(variables, *place.local_process, launcher.local_process, *place.local_processes,
                   launcher.local_processes.empty() ? "SLURM_STEP_TASKS_PER_NODE" : launcher.local_processes));
  }
  if (place.local_processes.value_or(1) > place.processes) {
    return absl::InvalidArgumentError(absl::StrCat(Show(variables, launcher.local_processes), " contradicts ",
                                                   Show(variables, launcher.processes),
                                                   ": a host has some of all processes"));
  }
  for (const absl::string_view name : launcher.launch) {
    if (const std::string* part = Find(variables, name)) {
      absl::StrAppend(&place.launch, place.launch.empty() ? "" : ".", *part);
    }
  }
  return place;
}

// Returns ports above those that Linux gives to outgoing connections by default (up to 60999). `seed` is the same in
// all processes.
std::vector<int> DerivedPorts(absl::string_view seed) {
  constexpr int kFirst = 61440, kAtOnce = 16, kGroups = (65536 - kFirst) / kAtOnce;
  const uint64_t hash = Fnv1a(seed);
  std::vector<int> ports;
  for (int i = 0; i < kAtOnce; ++i) ports.push_back(kFirst + static_cast<int>(hash % kGroups) * kAtOnce + i);
  return ports;
}

// Returns the variable of a launcher or MASTER_..., which must not contradict each other unless the launcher is inner.
absl::StatusOr<std::string> AddressVariable(const Launcher& launcher, const Variables& variables, absl::string_view own,
                                            absl::string_view common) {
  const std::string* mine = own.empty() ? nullptr : Find(variables, own);
  const std::string* other = Find(variables, common);
  if (mine != nullptr && other != nullptr && *mine != *other && !launcher.inner) {
    return absl::InvalidArgumentError(
        absl::StrCat(Show(variables, own), " contradicts ", Show(variables, common), "; unset one of them"));
  }
  return mine != nullptr ? *mine : other != nullptr ? *other : std::string();
}

absl::Status FindAddress(const Launcher& launcher, const Variables& variables, ProcessPlace& place) {
  if (place.processes == 1) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(place.address, AddressVariable(launcher, variables, launcher.address, kMasterAddress));
  const std::string* nodes = Find(variables, "SLURM_STEP_NODELIST");
  if (place.address.empty() && place.local_processes == place.processes) {
    place.address = "127.0.0.1";
  } else if (place.address.empty() && launcher.name == "Slurm" && nodes != nullptr) {
    SHALE_ASSIGN_OR_RETURN(place.address, FirstHost(*nodes));
  } else if (place.address.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(launcher.name, " says that this is process ", place.process, " of ",
                                                   place.processes, ", but not where process 0 is; set ",
                                                   launcher.address.empty() ? kMasterAddress : launcher.address,
                                                   " to its host for all processes"));
  }
  SHALE_ASSIGN_OR_RETURN(const std::string given, AddressVariable(launcher, variables, launcher.port, kMasterPort));
  const absl::string_view port_name =
      !launcher.port.empty() && Find(variables, launcher.port) != nullptr ? launcher.port : kMasterPort;
  SHALE_ASSIGN_OR_RETURN(const std::optional<int> port, Number(variables, port_name, 1, 65535));
  // torchrun's agent listens on MASTER_PORT itself, for a store that its processes share.
  const std::string* agent = Find(variables, "TORCHELASTIC_USE_AGENT_STORE");
  const bool taken = launcher.name == "torchrun" && agent != nullptr && absl::AsciiStrToLower(*agent) == "true";
  if (port.has_value() && !taken) {
    place.ports = {*port};
  } else if (port.has_value() || !place.launch.empty()) {
    place.ports = DerivedPorts(absl::StrCat(place.launch, ":", given));
  } else {
    return absl::InvalidArgumentError(absl::StrCat(launcher.name, " names no port for process 0; set ",
                                                   launcher.port.empty() ? kMasterPort : launcher.port,
                                                   " to a free one for all processes"));
  }
  return absl::OkStatus();
}

// Returns InvalidArgument if a launcher after `chosen` in the table says something else about this process. One that
// started a single process says nothing about the others.
absl::Status CheckOthers(const Launcher& chosen, const Variables& variables, const ProcessPlace& place) {
  if (chosen.inner) return absl::OkStatus();
  bool after = false;
  for (const Launcher& other : Launchers()) {
    if (after && Find(variables, other.marker) != nullptr && Find(variables, other.processes) != nullptr) {
      SHALE_ASSIGN_OR_RETURN(const ProcessPlace its, ReadNumbers(other, variables));
      if (its.processes > 1 && (its.process != place.process || its.processes != place.processes)) {
        return absl::InvalidArgumentError(
            absl::StrCat(Show(variables, chosen.process), " and ", Show(variables, chosen.processes), " contradict ",
                         Show(variables, other.process), " and ", Show(variables, other.processes), " of ", other.name,
                         "; unset those that do not describe this process"));
      }
    }
    after = after || &other == &chosen;
  }
  return absl::OkStatus();
}

// Returns an error if PMIx started this process and nobody says how many others there are. Checks its index otherwise.
absl::Status CheckPmix(const Variables& variables, const Launcher* chosen, const ProcessPlace& place) {
  SHALE_ASSIGN_OR_RETURN(const std::optional<int> rank, Number(variables, "PMIX_RANK", 0, kMostProcesses - 1));
  if (!rank.has_value()) return absl::OkStatus();
  if (chosen == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("PMIx started this process (", Show(variables, "PMIX_RANK"),
                     "), but no variable says how many processes there are; start them with mpirun or srun, or set "
                     "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"));
  }
  if ((chosen->name == "Open MPI" || chosen->name == "Slurm") && *rank != place.process) {
    return absl::InvalidArgumentError(
        absl::StrCat(Show(variables, "PMIX_RANK"), " contradicts ", Show(variables, chosen->process)));
  }
  return absl::OkStatus();
}

// Names and meanings are those of the launchers' own documentation: "Environment Variables" of torchrun, "Environment
// variables set for MPI applications" of Open MPI 5, "OUTPUT ENVIRONMENT VARIABLES" of srun, the constants of Kubeflow
// Trainer's torch plugin, "Indexed Job" of Kubernetes.
std::vector<Launcher> LaunchersOfHosts() {
  return {
      {"Shale's launcher",
       "SHALE_PROCESS",
       "SHALE_PROCESS",
       "SHALE_PROCESSES",
       "SHALE_LOCAL_PROCESS",
       "SHALE_LOCAL_PROCESSES",
       "SHALE_MASTER_ADDR",
       "SHALE_MASTER_PORT",
       {"SHALE_LAUNCH"},
       true},
      {"torchrun",
       "TORCHELASTIC_RUN_ID",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "MASTER_ADDR",
       "MASTER_PORT",
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"},
       true},
      {"RANK and WORLD_SIZE",
       "RANK",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       "MASTER_ADDR",
       "MASTER_PORT",
       {},
       false},
  };
}

std::vector<Launcher> LaunchersOfClusters() {
  return {
      {"Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       "",
       "",
       {"PMIX_NAMESPACE"},
       true},
      // The marker is not SLURM_PROCID, which a batch script has too, although it is no task of a step.
      {"Slurm",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       "",
       "",
       "",
       {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"},
       false},
      // Kubeflow starts one process in each pod. PET_NPROC_PER_NODE counts those that torchrun would start there.
      {"Kubeflow",
       "PET_NODE_RANK",
       "PET_NODE_RANK",
       "PET_NNODES",
       "",
       "",
       "PET_MASTER_ADDR",
       "PET_MASTER_PORT",
       {},
       false},
      {"the indexed Job", "JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX", "WORLD_SIZE", "", "", "", "", {}, false},
  };
}

constexpr int64_t kMostNodes = 1'000'000;

absl::Status Malformed(absl::string_view what, absl::string_view example, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("wanted a list of ", what, " as Slurm writes it, such as ", example, ", found ", Quoted(found)));
}

}  // namespace

absl::StatusOr<ProcessPlace> FindProcessPlace(const Variables& variables) {
  ProcessPlace place;
  const Launcher* chosen = nullptr;
  for (const Launcher& launcher : Launchers()) {
    if (Find(variables, launcher.marker) == nullptr) continue;
    if (launcher.name == "the indexed Job" && Find(variables, launcher.processes) == nullptr) {
      place.note = absl::StrCat(Show(variables, launcher.marker), " without WORLD_SIZE: this pod works alone");
      continue;
    }
    chosen = &launcher;
    SHALE_ASSIGN_OR_RETURN(place, ReadNumbers(launcher, variables));
    SHALE_RETURN_IF_ERROR(FindAddress(launcher, variables, place));
    SHALE_RETURN_IF_ERROR(CheckOthers(launcher, variables, place));
    break;
  }
  SHALE_RETURN_IF_ERROR(CheckPmix(variables, chosen, place));
  const bool batch_script = chosen == nullptr && Find(variables, "SLURM_PROCID") != nullptr;
  if (batch_script) place.note = "a Slurm job, but no step of srun";
  if (chosen != nullptr && chosen->name == "Kubeflow" && Find(variables, "PET_NPROC_PER_NODE") != nullptr) {
    place.note = absl::StrCat("one process in each pod; torchrun or Shale's launcher would start ",
                              Show(variables, "PET_NPROC_PER_NODE"));
  }
  return place;
}

std::string ProcessPlace::Describe() const {
  const std::string remark = note.empty() ? "" : absl::StrCat(" (", note, ")");
  if (!launched()) return absl::StrCat("one process, whose threads are the ranks", remark);
  std::string text = absl::StrCat("process ", process, " of ", processes);
  if (local_process.has_value() && local_processes.has_value()) {
    absl::StrAppend(&text, ", ", *local_process, " of ", *local_processes, " on this host");
  }
  absl::StrAppend(&text, ", by ", launcher, remark);
  if (!ports.empty()) {
    absl::StrAppend(&text, "; process 0 is at ", address, ":", ports.front());
    if (ports.size() > 1) absl::StrAppend(&text, " or one of the next ", ports.size() - 1, " ports");
  }
  return text;
}

const std::vector<Launcher>& Launchers() {
  static const auto& launchers = *[] {
    auto* all = new std::vector<Launcher>(LaunchersOfHosts());
    for (Launcher& launcher : LaunchersOfClusters()) all->push_back(std::move(launcher));
    return all;
  }();
  return launchers;
}

absl::StatusOr<std::string> FirstHost(absl::string_view nodes) {
  const auto malformed = [&] { return Malformed("nodes", "gpu[07-09,12]", nodes); };
  std::string host;
  for (size_t at = 0; at < nodes.size() && nodes[at] != ',';) {
    if (nodes[at] != '[') {
      if (nodes[at] == ']' || !absl::ascii_isgraph(nodes[at])) return malformed();
      host += nodes[at++];
      continue;
    }
    const size_t end = nodes.find(']', at);
    if (end == absl::string_view::npos) return malformed();
    const absl::string_view ranges = nodes.substr(at + 1, end - at - 1);
    const absl::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != absl::string_view::npos) return malformed();
    absl::StrAppend(&host, first);  // With its leading zeros.
    at = end + 1;
  }
  if (host.empty()) return malformed();
  return host;
}

absl::StatusOr<std::vector<int>> TasksOnNodes(absl::string_view tasks) {
  const auto malformed = [&] { return Malformed("tasks", "2(x3),1", tasks); };
  std::vector<int> all;
  for (const absl::string_view part : absl::StrSplit(tasks, ',')) {
    const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits("(x", 1));
    absl::string_view repeat = sides.second;
    int on_node = 0, nodes = 1;
    if (!absl::SimpleAtoi(sides.first, &on_node) || on_node < 0) return malformed();
    if (sides.first.size() < part.size()) {
      if (!absl::ConsumeSuffix(&repeat, ")") || !absl::SimpleAtoi(repeat, &nodes) || nodes < 1) return malformed();
    }
    if (static_cast<int64_t>(all.size()) + nodes > kMostNodes) return malformed();
    all.insert(all.end(), nodes, on_node);
  }
  return all;
}

}  // namespace shale
