// What `gpu_benches comm` does, on the stand-in for CUDA and NCCL.
#include "engine/launch/world.h"
#include "tools/bench/comm_world.h"
#include "tools/bench/gpu.h"

int main(int argc, char** argv) {
  return shale::BenchCommInWorld(
      argc - 1, argv + 1, [](shale::World& world) { return shale::GpuComms(shale::CreateJobGpuBackend, &world); });
}
