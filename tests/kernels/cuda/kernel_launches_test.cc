// Tests that no kernel is started with more threads than its launch bounds allow, which CUDA would refuse. Links the
// kernels that nvcc compiled with a stand-in for the CUDA runtime, which records launches and starts nothing.
#include <cuda_runtime_api.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops.h"
#include "tests/kernels/valid_ops.h"

namespace {

struct RecordedLaunch {
  const void* kernel;
  int64_t threads;
};

std::map<const void*, std::string>& Names() {
  static std::map<const void*, std::string> names;
  return names;
}

std::vector<RecordedLaunch>& Launches() {
  static std::vector<RecordedLaunch> launches;
  return launches;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Names()[kernel] = name;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  const dim3& block = config->blockDim;
  Launches().push_back({kernel, int64_t{block.x} * block.y * block.z});
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 228 << 10;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
// The code that nvcc makes for <<<>>> calls these. We do not use it.
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaErrorNotSupported; }

}  // extern "C"

namespace shale::testing {
namespace {

// Returns the launch bounds of each kernel, from the PTX.
std::map<std::string, int64_t> Bounds() {
  std::map<std::string, int64_t> bounds;
  const std::regex entry(R"(\.entry (\S+))"), most(R"(\.maxntid (\d+), (\d+), (\d+))");
  for (const auto& file : std::filesystem::directory_iterator("kernels/cuda/_objs/device_kernels")) {
    std::ifstream in(file.path());
    std::string line, kernel;
    for (std::smatch found; std::getline(in, line);) {
      if (std::regex_search(line, found, entry)) kernel = found[1];
      if (!std::regex_search(line, found, most)) continue;
      bounds[kernel] = std::stoll(found[1]) * std::stoll(found[2]) * std::stoll(found[3]);
    }
  }
  return bounds;
}

// Starts the kernels of an op whose operands begin at multiples of `alignment` bytes. They need not exist.
void Start(Op op, int64_t alignment) {
  int64_t address = int64_t{1} << 30;
  VisitOperands(op, [&](absl::string_view, Tensor& t, Access) {
    if (t.present()) t.data = reinterpret_cast<void*>((address += int64_t{1} << 20) + alignment);
  });
  std::visit(
      [&](const auto& kind) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(kind)>, MatMul>) {
          const int64_t scratch_bytes = cuda::ScratchBytesOf(kind);
          const absl::Status status =
              cuda::Run(kind, Scratch{reinterpret_cast<std::byte*>(int64_t{1} << 29), scratch_bytes}, nullptr);
          EXPECT_TRUE(status.ok()) << status;
        }
      },
      op.kinds());
}

TEST(KernelLaunchesTest, BlocksAreWithinTheBoundsOfTheirKernels) {
  for (const Op& op : ValidOps()) {
    for (const int64_t alignment : {256, 8}) Start(op, alignment);
  }
  const Tensor bias = Tensor::Contiguous(DType::kFloat32, {13}, reinterpret_cast<void*>(int64_t{1} << 30));
  const Tensor c = Tensor::Contiguous(DType::kFloat32, {3, 13}, reinterpret_cast<void*>(int64_t{1} << 31));
  ASSERT_TRUE(cuda::BroadcastBias(bias, c, nullptr).ok());
  std::byte* const data = reinterpret_cast<std::byte*>(int64_t{1} << 30);
  ASSERT_TRUE(cuda::SumRanks(DType::kFloat32, {data, data}, data, 1000, nullptr).ok());

  const std::map<std::string, int64_t> bounds = Bounds();
  std::map<std::string, int> started;
  for (const RecordedLaunch& launch : Launches()) {
    ASSERT_EQ(Names().count(launch.kernel), 1u);
    const std::string& name = Names()[launch.kernel];
    ++started[name];
    ASSERT_EQ(bounds.count(name), 1u) << name;
    EXPECT_LE(launch.threads, bounds.at(name)) << name;
  }
  EXPECT_GT(started.size(), 40u);
}

}  // namespace
}  // namespace shale::testing
