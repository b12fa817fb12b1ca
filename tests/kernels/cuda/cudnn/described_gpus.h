// GPUs as cuDNN wants them described, to build graphs for them without any.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"

namespace shale::testing {

struct DescribedGpu {
  const char* name;
  int major, minor, processors, blocks, threads, shared_bytes;  // Of a processor; shared memory of a block.
};

inline constexpr DescribedGpu kH200 = {"H200", 9, 0, 132, 32, 2048, 232448};

inline std::string JsonOf(const DescribedGpu& gpu) {
  return absl::StrCat(
      R"({"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,)",
      R"("warpSize": 32, "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024,)",
      R"("maxRegistersPerSM": 65536, "maxThreadsPerBlock": 1024, "pciDeviceId": 0, "isTccDriver": 0,)",
      R"("supportCoopLaunch": 1, "totalGlobalMem": 150000000000, "smClockRateKHz": 1980000,)",
      R"("memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0, "driverVer": 13000,)",
      R"("maxCtasPerSM": )", gpu.blocks, R"(, "maxThreadsPerSM": )", gpu.threads, R"(, "multiProcessorCount": )",
      gpu.processors, R"(, "maxSharedMemoryPerBlockOptin": )", gpu.shared_bytes, R"(, "deviceVer": )",
      100 * gpu.major + 10 * gpu.minor, R"(, "deviceName": ")", gpu.name, R"("})");
}

}  // namespace shale::testing
