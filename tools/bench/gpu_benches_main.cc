// gpu_benches: the benches ops, comm, sweep and formats in one small program for GPU kits, without the CPU's kernels.
//
//   gpu_benches ops --help
//   gpu_benches comm --help
//   gpu_benches sweep --help
//   gpu_benches formats --help
#include <cstdio>

#include "absl/strings/string_view.h"
#include "engine/cluster/launch/joined_processes.h"
#include "tools/bench/comm_processes.h"
#include "tools/bench/formats.h"
#include "tools/bench/gpu.h"
#include "tools/bench/ops.h"
#include "tools/bench/sweep.h"
#include "tools/command_line.h"

int main(int argc, char** argv) {
  const absl::string_view which = argc > 1 ? argv[1] : "";
  if (which == "ops") return shale::BenchOps(argc - 1, argv + 1, {shale::GpuOps(shale::CreateJobGpuBackend)});
  if (which == "comm") {
    return shale::BenchCommOfProcesses(argc - 1, argv + 1, [](shale::JoinedProcesses& joined) {
      return shale::GpuComms(shale::CreateJobGpuBackend, &joined);
    });
  }
  if (which == "sweep") return shale::BenchSweep(argc - 1, argv + 1);
  if (which == "formats") return shale::BenchFormats(argc - 1, argv + 1);
  std::fprintf(stderr, "gpu_benches: ops, comm, sweep or formats? Then its flags; gpu_benches ops --help lists them\n");
  return shale::kExitUsage;
}
