// Registers the fast CPU backend with the matmul kernels of our own (CpuMatMuls::kPacked), for each instruction set
// that they are built for and this machine has.
#include <string>
#include <utility>

#include "hwy/targets.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

// Kernels choose their instruction set at each call, for the whole process: the best of `targets` that they were built
// for, or the portable one.
bool Register(std::string name, std::string family, int threads, int64_t targets) {
  return RegisterTestBackend(
      {.name = std::move(name),
       .family = std::move(family),
       .create_device = [] { return CreateCpuDevice({.synchronous = true}); },
       .create_ops = [threads] { return CreateCpuOps({.threads = threads, .cpu_matmuls = CpuMatMuls::kPacked}); },
       .select = [targets] { hwy::GetChosenTarget().Update(targets); }});
}

#ifndef __SANITIZE_THREAD__  // See cpu_backends.cc.
[[maybe_unused]] const bool cpu_packed_backends_registered = [] {
  cpu::UsedInstructionSet();  // Applies SHALE_MAX_CPU_ISA to the supported targets.
  const int64_t best = hwy::SupportedTargets();
  Register("cpu_packed_threads1", "cpu_packed", 1, best);
  Register("cpu_packed_threads2", "cpu_packed", 2, best);
  if ((best & HWY_AVX2) != 0) Register("cpu_packed_avx2", "cpu_packed_avx2", 1, HWY_AVX2);
  if ((best & HWY_SSE4) != 0) Register("cpu_packed_sse4", "cpu_packed_sse4", 1, HWY_SSE4);
  return Register("cpu_packed_portable", "cpu_packed_portable", 1, 0);
}();
#endif

}  // namespace
}  // namespace shale::testing
