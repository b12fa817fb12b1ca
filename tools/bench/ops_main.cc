#include "tools/bench/gpu.h"
#include "tools/bench/ops.h"
#include "tools/bench/ops_cpu.h"
#include "tools/bench/passive_waiting.h"

int main(int argc, char** argv) {
  shale::WaitPassively(argv);
  return shale::BenchOps(argc, argv, {shale::CpuOpsMachine(), shale::GpuOps(shale::CreateJobGpuBackend)});
}
