#include "tools/bench/comm_world.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/check.h"
#include "tools/command_line.h"

namespace shale {
namespace {

// Joins the other processes of this host, if a launcher started this one. Each is a rank.
absl::StatusOr<std::unique_ptr<World>> Join() {
  const Variables variables = EnvironmentVariables();
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(variables));
  SHALE_ASSIGN_OR_RETURN(auto world, World::Join(variables, place.processes, {{"program", "comm"}}));
  if (world->ranks_here() == place.processes) return world;
  return world->Fail(absl::InvalidArgumentError("the processes are on several hosts, whose clocks differ"));
}

}  // namespace

int BenchCommInWorld(int argc, char** argv, const std::function<std::vector<CommKind>(World&)>& kinds) {
  const absl::StatusOr<std::unique_ptr<World>> world = Join();
  if (!world.ok()) {
    std::fprintf(stderr, "comm: %s\n", std::string(world.status().message()).c_str());
    return kExitUsage;
  }
  const int exit_code = BenchComm(argc, argv, kinds(**world), (*world)->control());
  if (exit_code == kExitOk) (*world)->Leave().IgnoreError();
  return exit_code;
}

}  // namespace shale
