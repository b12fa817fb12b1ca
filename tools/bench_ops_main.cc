#include "tools/bench_gpu.h"
#include "tools/bench_ops.h"
#include "tools/bench_ops_cpu.h"
#include "tools/passive_waiting.h"

int main(int argc, char** argv) {
  shale::WaitPassively(argv);
  return shale::BenchOps(argc, argv, {shale::CpuOpsMachine(), shale::GpuOps(shale::CreateJobGpuBackend)});
}
