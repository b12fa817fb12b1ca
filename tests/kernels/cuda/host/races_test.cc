// Tests that the host runner reports accesses to one word that no barrier orders, and reads of words that were never
// written.
#include <numeric>
#include <vector>

#include "tests/kernels/cuda/host/expect_report.h"

namespace shale::cuda {
namespace {

// Every thread reads what its neighbor wrote.
template <bool kBarrier>
SHALE_KERNEL Rotate(Global<float> values) {
  SHALE_SHARED_ARRAY(float, row, 64);
  row.Store(threadIdx.x, values.Load(blockIdx.x * 64 + threadIdx.x));
  if (kBarrier) __syncthreads();
  values.Store(blockIdx.x * 64 + threadIdx.x, row.Load((threadIdx.x + 1) % 64));
}

TEST(SharedRace, AReadNeedsABarrierAfterTheWrite) {
  std::vector<float> values(192);
  std::iota(values.begin(), values.end(), 0.0f);
  const Global<float> global(values.data(), 192, "values");
  // A thread reads a word that its neighbor has not written yet, or has just written without a barrier.
  ExpectWrong(
      [&](StreamHandle s) {
        return Launch("Rotate", Rotate<false>, {dim3(3), dim3(64)}, s, global);
      },
      {"Rotate: block (", "thread (", "reads shared row["});
  std::iota(values.begin(), values.end(), 0.0f);
  ASSERT_TRUE(Launch("Rotate", Rotate<true>, {dim3(3), dim3(64)}, nullptr, global).ok());
  for (int i = 0; i < 192; ++i) EXPECT_EQ(values[i], i / 64 * 64 + (i + 1) % 64);
  ExpectRight([&](StreamHandle s) { return Launch("Rotate", Rotate<true>, {dim3(3), dim3(64)}, s, global); });
}

// Without kBarrier there is no barrier before the second write, and another thread may not have read yet.
template <bool kBarrier>
SHALE_KERNEL ReuseTheArray(Global<int> out) {
  SHALE_SHARED_ARRAY(int, box, 1);
  for (int round = 0; round < 2; ++round) {
    if (kBarrier) __syncthreads();
    if (threadIdx.x == 0) box.Store(0, round);
    __syncthreads();
    out.Store(threadIdx.x * 2 + round, box.Load(0));
  }
}

TEST(SharedRace, AWriteNeedsABarrierAfterTheReads) {
  std::vector<int> out(192);
  const Global<int> global(out.data(), 192, "out");
  const LaunchShape shape{dim3(1), dim3(96)};
  ExpectWrong([&](StreamHandle s) { return Launch("Reuse", ReuseTheArray<false>, shape, s, global); },
              {"shared box[0]"});
  ExpectRight([&](StreamHandle s) { return Launch("Reuse", ReuseTheArray<true>, shape, s, global); });
}

// Each thread copies a pack and reads that of its neighbor.
template <bool kWait, bool kBarrier>
SHALE_KERNEL CopyAndRotate(Global<int> from, Global<int> to) {
  SHALE_SHARED_ARRAY(int, row, 256);
  const int t = static_cast<int>(threadIdx.x);
  row.BeginCopy(4 * t, from, 4 * t, t != 5);
  from.Store(4 * t, -t);  // A copy may read its source until the thread waits for it.
  if (kWait) WaitForCopies();
  if (kBarrier) __syncthreads();
  to.Store<4>(4 * t, row.Load<4>((t + 1) % 64 * 4));
}

SHALE_KERNEL CopyAndReturn(Global<int> from) {
  SHALE_SHARED_ARRAY(int, row, 4);
  row.BeginCopy(0, from, 0, false);
}

TEST(SharedRace, ACopyNeedsAWaitAndABarrier) {
  alignas(16) int x[256] = {}, y[256] = {};
  const Global<int> from(x, 256, "from"), to(y, 256, "to");
  const auto run = [&](void (*kernel)(Global<int>, Global<int>)) {
    return [=, &x](StreamHandle s) {
      std::iota(x, x + 256, 0);
      return Launch("Copy", kernel, {dim3(1), dim3(64)}, s, from, to);
    };
  };
  ExpectWrong(run(CopyAndRotate<false, true>), {"reads shared row[", "to which a copy of thread (", "is under way"});
  ExpectWrong(run(CopyAndRotate<true, false>), {"reads shared row["});
  ExpectRight(run(CopyAndRotate<true, true>));
  for (int i = 0; i < 256; ++i) {
    const int source = (i + 4) % 256, thread = source / 4;
    EXPECT_EQ(y[i], thread == 5 ? 0 : source % 4 == 0 ? -thread : source) << i;
  }
  ExpectWrong(
      [&](StreamHandle s) {
        return Launch("Copy", CopyAndReturn, {dim3(1), dim3(1)}, s, from);
      },
      {"thread (0, 0, 0) returns without WaitForCopies()"});
}

SHALE_KERNEL AllWriteOneWord() {
  SHALE_DYNAMIC_SHARED(int, box);
  box.Store(0, 7);  // All write the same value, which is still undefined.
}

TEST(SharedRace, TwoWritersOfOneWord) {
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Write", AllWriteOneWord, {dim3(1), dim3(2), 16}, s);
      },
      {"writes shared box[0], which thread (", "wrote with no barrier between them"});
}

SHALE_KERNEL NeighboursInOneWord(Global<BFloat16> out) {
  SHALE_SHARED_ARRAY(BFloat16, row, 8);
  row.Store(threadIdx.x, Narrow<BFloat16>(1));
  out.Store(threadIdx.x, row.Load(threadIdx.x));
}

TEST(SharedRace, NeighbouringBFloat16AreApart) {
  std::vector<BFloat16> out(8);
  const Global<BFloat16> global(out.data(), 8, "out");
  ExpectRight([&](StreamHandle s) { return Launch("Neighbours", NeighboursInOneWord, {dim3(1), dim3(8)}, s, global); });
}

SHALE_KERNEL ReadUnwritten(Global<float> out) {
  SHALE_SHARED_ARRAY(float, row, 4);
  if (threadIdx.x < 3) row.Store(threadIdx.x, 1.0f);
  __syncthreads();
  out.Store(threadIdx.x, row.Load(threadIdx.x));
}

TEST(SharedMemory, IsUnwrittenAtFirst) {
  std::vector<float> out(4);
  const Global<float> global(out.data(), 4, "out");
  ExpectWrong(
      [&](StreamHandle s) {
        return Launch("Read", ReadUnwritten, {dim3(1), dim3(4)}, s, global);
      },
      {"thread (3, 0, 0) reads shared row[3], which was never written"});
}

SHALE_KERNEL LeftByABlock() {
  SHALE_SHARED_ARRAY(int, box, 1);
  if (blockIdx.x == 0) box.Store(0, 1);
  if (blockIdx.x == 1) box.Load(0);
}

TEST(SharedMemory, IsForgottenBetweenBlocks) {
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("Left", LeftByABlock, {dim3(2), dim3(1)}, s);
      },
      {"block (1, 0, 0) thread (0, 0, 0) reads shared box[0], which was never written"});
}

SHALE_KERNEL UseTheBox(bool write) {
  SHALE_SHARED_ARRAY(int, box, 1);
  if (write) {
    box.Store(0, 1);
  } else {
    box.Load(0);
  }
}

TEST(SharedMemory, IsForgottenBetweenLaunches) {
  // The second launch takes more epochs than shadow memory keeps.
  for (const unsigned blocks : {1u, (1u << 20) + 1}) {
    ASSERT_TRUE(Launch("Write", UseTheBox, {dim3(blocks), dim3(1)}, nullptr, true).ok());
    const absl::Status status = Launch("Read", UseTheBox, {dim3(1), dim3(1)}, nullptr, false);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  }
}

SHALE_KERNEL BlocksWriteOneWord(Global<float> sum) {
  if (threadIdx.x == 0) sum.Store(1, static_cast<float>(blockIdx.x));
}

TEST(GlobalRace, TwoBlocksWriteOneWord) {
  std::vector<float> sum(2);
  const Global<float> global(sum.data(), 2, "sum");
  ExpectWrong(
      [&](StreamHandle s) {
        return Launch("Sum", BlocksWriteOneWord, {dim3(2), dim3(32)}, s, global);
      },
      {"writes sum[1], which block (", "wrote in the same launch"});
}

// No barrier orders blocks, not even if the writer comes last.
SHALE_KERNEL BlocksReadWhatOneWrites(Global<float> x) {
  __syncthreads();
  if (blockIdx.x == 2) {
    x.Store(0, 1.0f);
  } else {
    x.Load(0);
  }
}

TEST(GlobalRace, OneBlockReadsWhatAnotherWrites) {
  std::vector<float> x(1);
  const Global<float> global(x.data(), 1, "x");
  ExpectWrong(
      [&](StreamHandle s) {
        return Launch("Blocks", BlocksReadWhatOneWrites, {dim3(3), dim3(1)}, s, global);
      },
      {"x[0], which block ("});
}

SHALE_KERNEL AddInOneBlock(Global<float> sum) { sum.Store(0, sum.Load(0) + 1); }

TEST(GlobalRace, TwoThreadsReadModifyWrite) {
  std::vector<float> sum(1);
  const Global<float> global(sum.data(), 1, "sum");
  ExpectWrong(
      [&](StreamHandle s) {
        return Launch("Add", AddInOneBlock, {dim3(1), dim3(33)}, s, global);
      },
      {"sum[0], which thread ("});
}

TEST(GlobalMemory, LaunchesAreOrderedWithEachOther) {
  std::vector<float> sum(1);
  const Global<float> global(sum.data(), 1, "sum");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Launch("Add", AddInOneBlock, {dim3(1), dim3(1)}, nullptr, global).ok());
  EXPECT_EQ(sum[0], 3);
}

SHALE_KERNEL ReadAt(Global<float> x, int64_t i) { x.Load<4>(i); }

TEST(GlobalMemory, AnAccessStaysWithinItsArrayAndAligned) {
  alignas(16) float x[8] = {};
  const auto read_at = [&](int64_t size, int64_t i) {
    return [=, &x](StreamHandle s) {
      return Launch("ReadAt", ReadAt, {dim3(1), dim3(1)}, s, Global<float>(x, size, "x"), i);
    };
  };
  ExpectRight(read_at(8, 4));
  ExpectWrong(read_at(7, 4), {"reads x[4] and 3 more, which has 7 elements"});
  ExpectWrong(read_at(8, -4), {"reads x[-4]"});
  ExpectWrong(read_at(8, 1), {"not a multiple of the access's 16 bytes"});
  ExpectWrong(
      [](StreamHandle s) {
        return Launch("ReadAt", ReadAt, {dim3(1), dim3(1)}, s, Global<float>(nullptr, 0, "residual"), 0);
      },
      {"reads residual[0] and 3 more, which is not given"});
}

}  // namespace
}  // namespace shale::cuda
