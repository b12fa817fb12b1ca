// gpu_benches: the benches ops and comm in one small program for GPU kits, without the CPU's kernels.
//
//   gpu_benches ops --help
//   gpu_benches comm --help
#include <cstdio>

#include "absl/strings/string_view.h"
#include "tools/bench/comm.h"
#include "tools/bench/gpu.h"
#include "tools/bench/ops.h"
#include "tools/command_line.h"

int main(int argc, char** argv) {
  const absl::string_view which = argc > 1 ? argv[1] : "";
  if (which == "ops") return shale::BenchOps(argc - 1, argv + 1, {shale::GpuOps(shale::CreateJobGpuBackend)});
  if (which == "comm") return shale::BenchComm(argc - 1, argv + 1, shale::GpuComms(shale::CreateJobGpuBackend));
  std::fprintf(stderr, "gpu_benches: which one: ops or comm? Then its flags; gpu_benches ops --help lists them\n");
  return shale::kExitUsage;
}
