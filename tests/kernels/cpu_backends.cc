// Registers the fast CPU backend, with matmuls by oneDNN, with one and two threads, and with each instruction set that
// this machine has. AVX-512 is also tested without the instructions of AMX, and without those of AVX512-BF16.
// cpu_packed_backends.cc registers the other matmuls.
#include <utility>

#include "hwy/targets.h"
#include "kernels/cpu/bfloat16_instructions.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

// Registers a backend. Kernels choose their instruction set at each call, for the whole process: the best of `targets`
// that they were built for, or the portable one.
bool Register(std::string name, std::string family, int threads, int64_t targets,
              cpu::InstructionSet highest = cpu::InstructionSet::kAmx) {
  return RegisterTestBackend(
      {.name = std::move(name),
       .family = std::move(family),
       .create_device = [] { return CreateCpuDevice({.synchronous = true}); },
       .create_ops = [threads] { return CreateCpuOps({.threads = threads, .cpu_matmuls = CpuMatMuls::kOneDnn}); },
       .select =
           [targets, highest] {
             hwy::GetChosenTarget().Update(targets);
             cpu::ForbidInstructionsAbove(highest);
           }});
}

[[maybe_unused]] const bool cpu_backends_registered = [] {
  cpu::UsedInstructionSet();  // Applies SHALE_MAX_CPU_ISA to the supported targets.
  const int64_t best = hwy::SupportedTargets();
  Register("cpu_threads1", "cpu", 1, best);
  Register("cpu_threads2", "cpu", 2, best);
  if (cpu::MayUseAmx()) {
    Register("cpu_avx512_bf16", "cpu_avx512_bf16", 1, HWY_AVX3, cpu::InstructionSet::kAvx512BFloat16);
  }
  if (cpu::MayUseBFloat16Instructions()) {
    Register("cpu_avx512", "cpu_avx512", 1, HWY_AVX3, cpu::InstructionSet::kAvx512);
  }
  if ((best & HWY_AVX2) != 0) Register("cpu_avx2", "cpu_avx2", 1, HWY_AVX2);
  return Register("cpu_portable", "cpu_portable", 1, 0);
}();

}  // namespace
}  // namespace shale::testing
