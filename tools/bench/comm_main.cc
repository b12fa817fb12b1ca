#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/launch/world.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/in_process.h"
#include "tools/bench/comm.h"
#include "tools/bench/comm_gloo.h"
#include "tools/bench/gpu.h"
#include "tools/bench/support.h"
#include "tools/command_line.h"

namespace shale {
namespace {

absl::StatusOr<CommRanks> CpuRanks(int ranks, int /*ranks_per_device*/) {
  CommRanks made;
  const int processors = ProcessorCount();
  made.about = absl::StrCat(ProcessorName(), ", ", processors, " processor", processors == 1 ? "" : "s");
  made.devices.assign(ranks, CreateCpuDevice());
  SHALE_ASSIGN_OR_RETURN(made.communicators, CreateInProcessGroup(ranks));
  return made;
}

std::vector<CommKind> Kinds(World& world) {
  const auto gloo = [&world](bool read_memory) {
    return [&world, read_memory](int ranks, int) { return GlooRanks(world, ranks, read_memory); };
  };
  std::vector<CommKind> kinds = {{.device = "gloo", .create = gloo(true)}, {.device = "tcp", .create = gloo(false)}};
  if (!world.alone()) return kinds;
  kinds.insert(kinds.begin(), {.device = "cpu", .create = CpuRanks});
  for (CommKind& kind : GpuComms(CreateJobGpuBackend)) kinds.push_back(std::move(kind));
  return kinds;
}

// Joins the other processes of this host, if a launcher started this one. Each is a rank.
absl::StatusOr<std::unique_ptr<World>> Join() {
  const Variables variables = EnvironmentVariables();
  SHALE_ASSIGN_OR_RETURN(const ProcessPlace place, FindProcessPlace(variables));
  SHALE_ASSIGN_OR_RETURN(auto world, World::Join(variables, place.processes, {{"program", "comm"}}));
  if (world->ranks_here() == place.processes) return world;
  return world->Fail(absl::InvalidArgumentError("the processes are on several hosts, whose clocks differ"));
}

int Run(int argc, char** argv) {
  const absl::StatusOr<std::unique_ptr<World>> world = Join();
  if (!world.ok()) {
    std::fprintf(stderr, "comm: %s\n", std::string(world.status().message()).c_str());
    return kExitUsage;
  }
  const int exit_code = BenchComm(argc, argv, Kinds(**world), (*world)->control());
  if (exit_code == kExitOk) (*world)->Leave().IgnoreError();
  return exit_code;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) { return shale::Run(argc, argv); }
