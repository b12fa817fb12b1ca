#include "tools/bench/comm_processes.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

// Joins the other processes of this host, if a launcher started this one. Each is a rank.
absl::StatusOr<std::unique_ptr<JoinedProcesses>> Join() {
  const Variables variables = EnvironmentVariables();
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(variables));
  SHALE_ASSIGN_OR_RETURN(auto joined, JoinedProcesses::Join(variables, place.processes, {{"program", "comm"}}));
  if (joined->ranks_here() == place.processes) return joined;
  return joined->Fail(absl::InvalidArgumentError("the processes are on several hosts, whose clocks differ"));
}

}  // namespace

int BenchCommOfProcesses(int argc, char** argv, const std::function<std::vector<CommKind>(JoinedProcesses&)>& kinds) {
  const absl::StatusOr<std::unique_ptr<JoinedProcesses>> joined = Join();
  if (!joined.ok()) {
    std::fprintf(stderr, "comm: %s\n", std::string(joined.status().message()).c_str());
    return kExitUsage;
  }
  const int exit_code = BenchComm(argc, argv, kinds(**joined), (*joined)->control());
  if (exit_code == kExitOk) (*joined)->Leave().IgnoreError();
  return exit_code;
}

}  // namespace shale
