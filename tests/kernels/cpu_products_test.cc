// How the CPU cuts products into tiles depends on the number of threads. What comes out does not.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/device/cpu/cpu_device.h"
#include "tests/kernels/op_rig.h"

namespace shale::testing {
namespace {

std::vector<std::byte> RunOnThreads(int threads, const TestMemory& memory, const MatMul& op) {
  OpRig rig({.name = "cpu",
             .family = "cpu",
             .create_device = [] { return CreateCpuDevice({}); },
             .create_ops = [threads] { return CreateCpuOps({.threads = threads}); }});
  std::vector<std::byte> image;
  const absl::Status status = rig.Run(memory, op, image);
  EXPECT_TRUE(status.ok()) << status;
  return image;
}

TEST(CpuProductsTest, LargeProductsHaveTheSameBitsOnAnyNumberOfThreads) {
  struct Case {
    int64_t m, n, k;
    bool transpose_a;
  };
  for (const Case& c : {Case{704, 512, 520, true}, Case{1100, 256, 300, true}, Case{512, 512, 256, true},
                        Case{256, 1408, 256, true}, Case{1030, 128, 96, false}, Case{520, 1600, 96, false}}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << c.m << " x " << c.n << " x " << c.k << " of " << ToString(dtype));
      TestMemory memory;
      const MatMul op{.a = c.transpose_a ? memory.Random(dtype, {c.k, c.m}) : memory.Random(dtype, {c.m, c.k}),
                      .b = memory.Random(dtype, {c.k, c.n}),
                      .c_MN = memory.Output(c.transpose_a ? DType::kFloat32 : dtype, {c.m, c.n}),
                      .transpose_a = c.transpose_a};
      const std::vector<std::byte> one = RunOnThreads(1, memory, op);
      for (const int threads : {2, 3, 5, 8}) {
        EXPECT_TRUE(RunOnThreads(threads, memory, op) == one) << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
