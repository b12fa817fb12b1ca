#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/device/cpu/cpu_device.h"
#include "sharding/comm/in_process.h"
#include "tools/bench/comm.h"
#include "tools/bench/comm_gloo.h"
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

std::vector<CommKind> Kinds() {
  std::vector<CommKind> kinds = {{.device = "cpu", .create = CpuRanks}, {.device = "gloo", .create = GlooRanks}};
  for (CommKind& kind : GpuComms(CreateJobGpuBackend)) kinds.push_back(std::move(kind));
  return kinds;
}

}  // namespace
}  // namespace shale

int main(int argc, char** argv) { return shale::BenchComm(argc, argv, shale::Kinds()); }
