// Describes GPUs as cuDNN wants it, to build graphs for them on a machine without a GPU.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace shale::testing {

struct DescribedGpu {
  const char* name;
  // blocks and threads are per processor, shared_bytes per block.
  int major, minor, processors, blocks, threads, shared_bytes;
};

inline constexpr DescribedGpu kH200 = {"H200", 9, 0, 132, 32, 2048, 232448};

// GPUs of each compute capability that we know of, from the oldest that we take. Those of one capability differ in
// their number of processors, which must not change the workspace.
inline constexpr DescribedGpu kDescribedGpus[] = {
    {"A100", 8, 0, 108, 32, 2048, 166912},      {"A10", 8, 6, 72, 16, 1536, 101376},
    {"L40S", 8, 9, 142, 24, 1536, 101376},      kH200,
    {"H100 PCIe", 9, 0, 114, 32, 2048, 232448}, {"B200", 10, 0, 148, 32, 2048, 232448},
    {"B300", 10, 3, 148, 32, 2048, 232448},     {"RTX 5090", 12, 0, 170, 24, 1536, 101376},
};

inline std::string JsonOf(const DescribedGpu& gpu) {
  return absl::StrCat(
      R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,)",
      R"("warpSize": 32, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,)",
      R"("maxRegistersPerSM": 65536, "maxThreadsPerBlock": 1024, "pciDeviceId": 0, "isTccDriver": 0,)",
      R"("supportCoopLaunch": 1, "totalGlobalMem": 150000000000, "smClockRateKHz": 1980000,)",
      R"("memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0, "driverVer": 13000,)",
      // cuDNN 9.28 reads these three; older versions ignore them.
      R"("memoryBusWidth": 5120, "smCountOrigin": 0, "oversizedSharedMemoryPerBlock": )", gpu.shared_bytes,
      R"(, "maxCtasPerSM": )", gpu.blocks, R"(, "maxThreadsPerSM": )", gpu.threads, R"(, "multiProcessorCount": )",
      gpu.processors, R"(, "maxSharedMemoryPerBlockOptin": )", gpu.shared_bytes, R"(, "deviceVer": )",
      100 * gpu.major + 10 * gpu.minor, R"(, "deviceName": ")", gpu.name, R"("})");
}

}  // namespace shale::testing
