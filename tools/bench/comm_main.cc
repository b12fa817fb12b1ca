#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/cluster/launch/joined_processes.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/in_process.h"
#include "tools/bench/comm.h"
#include "tools/bench/comm_gloo.h"
#include "tools/bench/comm_processes.h"
#include "tools/bench/gpu.h"
#include "tools/bench/support.h"

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

std::vector<CommKind> Kinds(JoinedProcesses& joined) {
  const auto gloo = [&joined](bool read_memory) {
    return [&joined, read_memory](int ranks, int) { return GlooRanks(joined, ranks, read_memory); };
  };
  std::vector<CommKind> kinds = {{.device = "gloo", .create = gloo(true)}, {.device = "tcp", .create = gloo(false)}};
  if (joined.alone()) kinds.insert(kinds.begin(), {.device = "cpu", .create = CpuRanks});
  for (CommKind& kind : GpuComms(CreateJobGpuBackend, &joined)) kinds.push_back(std::move(kind));
  return kinds;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) { return shale::BenchCommOfProcesses(argc, argv, shale::Kinds); }
