// What `gpu_benches comm` does, on the stand-in for CUDA and NCCL.
#include "engine/cluster/launch/joined_processes.h"
#include "tools/bench/comm_processes.h"
#include "tools/bench/gpu.h"

int main(int argc, char** argv) {
  return shale::BenchCommOfProcesses(argc - 1, argv + 1, [](shale::JoinedProcesses& joined) {
    return shale::GpuComms(shale::CreateJobGpuBackend, &joined);
  });
}
