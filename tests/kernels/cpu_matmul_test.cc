// Tests large CPU matmuls, by oneDNN and by our own kernels: several tiles, packed operands, sums in several parts.
// Their bits do not depend on the number of threads. The conformance suite compares small ones. BUILD runs this file
// again as on older processors, and with more numbers of threads.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/device/cpu/cpu_device.h"
#include "kernels/ops/matmul.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/op_rig.h"

namespace shale::testing {
namespace {

std::vector<std::byte> RunOnThreads(CpuMatMuls cpu_matmuls, int threads, const TestMemory& memory, const MatMul& op) {
  static auto& rigs = *new std::map<std::pair<CpuMatMuls, int>, std::unique_ptr<OpRig>>;  // Kept with their threads.
  std::unique_ptr<OpRig>& rig = rigs[{cpu_matmuls, threads}];
  if (rig == nullptr) {
    rig.reset(
        new OpRig({.name = "cpu",
                   .family = "cpu",
                   .create_device = [] { return CreateCpuDevice({}); },
                   .create_ops = [=] { return CreateCpuOps({.threads = threads, .cpu_matmuls = cpu_matmuls}); }}));
  }
  std::vector<std::byte> image;
  const absl::Status status = rig->Run(memory, op, image);
  EXPECT_TRUE(status.ok()) << status;
  return image;
}

// Returns whether the instruction set is limited to an older one.
bool OnOlderProcessor() { return std::getenv("SHALE_MAX_CPU_ISA") != nullptr; }

// Returns whether this processor has no instructions beyond the limit. A program without the limit has then run the
// same matmuls.
bool LimitChangesNothing() {
  const std::optional<cpu::InstructionSet> limit = cpu::InstructionSetLimit();
  return limit.has_value() && cpu::ProcessorInstructionSet() <= *limit;
}

// Returns `cases`, or on an older processor every third: how work is divided among threads and into pieces does not
// depend on the instructions, which the conformance suite runs with every size.
template <typename Case>
std::vector<Case> ForThisProcessor(std::vector<Case> cases) {
  if (!OnOlderProcessor()) return cases;
  std::vector<Case> some;
  for (size_t i = 0; i < cases.size(); i += 3) some.push_back(cases[i]);
  return some;
}

constexpr CpuMatMuls kCpuMatMuls[] = {CpuMatMuls::kOneDnn, CpuMatMuls::kPacked};

TEST(CpuMatMulTest, LargeMatMulsHaveTheSameBitsOnAnyNumberOfThreads) {
  if (LimitChangesNothing()) GTEST_SKIP();
  struct Case {
    int64_t m, n, k;
    bool transpose_a, transpose_b = false, bias = false, accumulate = false;
    float scale = 1;
  };
  for (const Case& c : ForThisProcessor(std::vector<Case>{
           Case{704, 512, 520, true}, Case{1088, 1088, 400, true}, Case{1100, 256, 300, true},
           Case{1536, 768, 260, true, false, false, true}, Case{256, 1408, 256, true}, Case{512, 512, 1100, true},
           Case{1030, 128, 2100, false}, Case{520, 640, 96, false, true, true},
           Case{600, 64, 1100, false, true, false, true}, Case{520, 1600, 96, false}, Case{2048, 512, 700, true},
           Case{2048, 320, 1408, false}, Case{2000, 512, 640, false, true}, Case{513, 200, 300, false},
           Case{576, 1408, 4100, true},
           // Few rows and a long K.
           Case{32, 256, 8192, false, false, true}, Case{38, 384, 50257, false}, Case{64, 16, 50257, false, true},
           Case{1024, 16, 700, false, true, false, false, 2}, Case{1024, 700, 16, false, true, false, true},
           Case{38, 384, 5000, false, false, false, true, 0.5f}})) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << c.m << " x " << c.n << " x " << c.k << " of " << ToString(dtype));
      TestMemory memory;
      const DType c_dtype = c.transpose_a ? DType::kFloat32 : dtype;
      MatMul op{.a = c.transpose_a ? memory.Random(dtype, {c.k, c.m}) : memory.Random(dtype, {c.m, c.k}),
                .b = c.transpose_b ? memory.Random(dtype, {c.n, c.k}) : memory.Random(dtype, {c.k, c.n}),
                .transpose_a = c.transpose_a,
                .transpose_b = c.transpose_b,
                .accumulate = c.accumulate,
                .scale = c.scale};
      if (c.bias) op.bias_N = memory.Random(dtype, {c.n});
      op.c_MN = c.accumulate ? memory.Random(c_dtype, {c.m, c.n}) : memory.Output(c_dtype, {c.m, c.n});
      for (const CpuMatMuls cpu_matmuls : kCpuMatMuls) {
        const std::vector<std::byte> one = RunOnThreads(cpu_matmuls, 1, memory, op);
        const bool few = std::getenv("SHALE_TEST_EVERYTHING") == nullptr || cpu_matmuls == CpuMatMuls::kPacked;
        for (const int threads : few ? std::vector<int>{3, 16} : std::vector<int>{2, 3, 5, 8, 13, 16, 32}) {
          EXPECT_TRUE(RunOnThreads(cpu_matmuls, threads, memory, op) == one)
              << ToString(cpu_matmuls) << ", " << threads;
        }
      }
    }
  }
}

// Up to 1,024 columns of a are left to oneDNN.
TEST(CpuMatMulTest, WithAvx512LongRowsOfATransposedAAreMultipliedByTheSameKernelsInBothWays) {
  if (OnOlderProcessor() || !__builtin_cpu_supports("avx512vl")) GTEST_SKIP() << "needs AVX-512";
  const std::unique_ptr<Ops> ops[] = {CreateCpuOps({.threads = 2, .cpu_matmuls = kCpuMatMuls[0]}),
                                      CreateCpuOps({.threads = 2, .cpu_matmuls = kCpuMatMuls[1]})};
  for (const int64_t m : {1024, 1040}) {
    TestMemory memory;
    const MatMul op{.a = memory.Random(DType::kFloat32, {640, m}),
                    .b = memory.Random(DType::kFloat32, {640, 192}),
                    .c_MN = memory.Output(DType::kFloat32, {m, 192}),
                    .transpose_a = true};
    EXPECT_EQ(ops[0]->ScratchBytes(op) == ops[1]->ScratchBytes(op), m > 1024) << m;
    if (m <= 1024) continue;
    EXPECT_TRUE(RunOnThreads(kCpuMatMuls[0], 2, memory, op) == RunOnThreads(kCpuMatMuls[1], 3, memory, op)) << m;
  }
}

class PackedBTest : public ::testing::TestWithParam<CpuMatMuls> {
 protected:
  static std::vector<std::byte> RunOnThreads(int threads, const TestMemory& memory, const MatMul& op) {
    return testing::RunOnThreads(GetParam(), threads, memory, op);
  }
};
INSTANTIATE_TEST_SUITE_P(By, PackedBTest, ::testing::ValuesIn(kCpuMatMuls),
                         [](const auto& info) { return std::string(ToString(info.param)); });

// The second matmul has only NaNs in b, so that it must use the b that the first one packed.
TEST_P(PackedBTest, AMatMulFindsItsBWhereAnotherHasPackedIt) {
  const std::unique_ptr<Ops> ops = CreateCpuOps({.threads = 3, .cpu_matmuls = GetParam()});
  int compared = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool transpose_b : {false, true}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 64}, {150, 97}, {64, 1100}}) {
        const int64_t rows = transpose_b ? n : k, columns = transpose_b ? k : n;  // The shape of b.
        for (const int64_t other_m : {530, 512, 1100}) {
          SCOPED_TRACE(::testing::Message() << n << " x " << k << " of " << ToString(dtype) << ", other M " << other_m);
          TestMemory plain, packing(2), finding;
          MatMul expected{.a = plain.Random(dtype, {other_m, k}),
                          .b = plain.Random(dtype, {rows, columns}),
                          .c_MN = plain.Output(dtype, {other_m, n}),
                          .transpose_b = transpose_b};
          const int64_t bytes = ops->PackedBytes(expected);
          if (bytes == 0) continue;
          ++compared;
          const std::vector<std::byte> wanted = RunOnThreads(2, plain, expected);
          const Tensor b = plain.Bind(expected.b, const_cast<std::byte*>(wanted.data()));
          std::vector<double> b_values(n * k);
          for (int64_t i = 0; i < n * k; ++i) b_values[i] = ElementOf(b, i);

          MatMul packs{.a = packing.Random(dtype, {600, k}),
                       .b = packing.Values(dtype, {rows, columns}, b_values),
                       .c_MN = packing.Output(dtype, {600, n}),
                       .packed_b = packing.Output(DType::kInt16, {bytes / 2}),
                       .transpose_b = transpose_b};
          ASSERT_EQ(ops->PackedBytes(packs), bytes);
          MatMul in_scratch = packs;
          in_scratch.packed_b = Tensor();
          EXPECT_NEAR(ops->ScratchBytes(in_scratch) - ops->ScratchBytes(packs), bytes, 256);
          std::vector<std::byte> image = RunOnThreads(2, packing, packs);
          const Tensor packed = packing.Bind(packs.packed_b, image.data());
          std::vector<double> packed_values(bytes / 2);
          for (int64_t i = 0; i < bytes / 2; ++i) packed_values[i] = ElementOf(packed, i);

          MatMul finds{.a = finding.Random(dtype, {other_m, k}),
                       .b = finding.Output(dtype, {rows, columns}),
                       .c_MN = finding.Output(dtype, {other_m, n}),
                       .packed_b = finding.Values(DType::kInt16, {bytes / 2}, packed_values),
                       .transpose_b = transpose_b,
                       .b_is_packed = true};
          std::vector<std::byte> found = RunOnThreads(3, finding, finds);
          const Tensor got = finding.Bind(finds.c_MN, found.data());
          const Tensor c = plain.Bind(expected.c_MN, const_cast<std::byte*>(wanted.data()));
          EXPECT_EQ(std::memcmp(got.data, c.data, c.extent_bytes()), 0);
        }
      }
    }
  }
  const int in_each = 2 * 3 * 3;
  if (GetParam() == CpuMatMuls::kPacked) {
    EXPECT_EQ(compared, 2 * in_each);
  } else if (!OnOlderProcessor() && __builtin_cpu_supports("avx512f")) {
    EXPECT_GE(compared, in_each * (__builtin_cpu_supports("avx512bf16") ? 2 : 1));
  }
}

TEST_P(PackedBTest, WhatIsNotPackedAsAWholeHasNoUseForAPlace) {
  const std::unique_ptr<Ops> ops = CreateCpuOps({.threads = 2, .cpu_matmuls = GetParam()});
  const auto bytes_of = [&](DType dtype, int64_t m, int64_t n, int64_t k) {
    return ops->PackedBytes(MatMul{.a = Tensor::Contiguous(dtype, {m, k}),
                                   .b = Tensor::Contiguous(dtype, {k, n}),
                                   .c_MN = Tensor::Contiguous(dtype, {m, n})});
  };
  EXPECT_EQ(bytes_of(DType::kFloat32, 64, 128, 64), 0);
  EXPECT_EQ(bytes_of(DType::kBFloat16, 512, 20011, 840), 0);
  EXPECT_EQ(CreateReferenceOps()->PackedBytes(MatMul()), 0);
}

// Sums are divided by K alone, so a row has the same bits among few rows and among many, with b packed at once and in
// pieces.
TEST(PackedMatMulTest, ARowDoesNotDependOnTheNumberOfRowsAndColumns) {
  constexpr int64_t kM = 530, kN = 1100, kK = 700;
  for (const DType c_dtype : {DType::kFloat32, DType::kBFloat16}) {
    TestMemory memory;
    const Tensor a = memory.Random(DType::kBFloat16, {kM, kK}), b = memory.Random(DType::kBFloat16, {kN, kK});
    const Tensor all = memory.Output(c_dtype, {kM, kN});
    MatMul op{.a = a, .b = b, .c_MN = all, .transpose_b = true};
    std::vector<std::byte> many = RunOnThreads(CpuMatMuls::kPacked, 2, memory, op);
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, kN}, {37, 1}, {kM, 33}, {511, 1088}}) {
      MatMul part{.a = a.Slice(0, 0, m), .b = b.Slice(0, 0, n), .c_MN = all.Slice(0, 0, m).Slice(1, 0, n)};
      part.transpose_b = true;
      std::vector<std::byte> few = RunOnThreads(CpuMatMuls::kPacked, 3, memory, part);
      const Tensor got = memory.Bind(part.c_MN, few.data()), wanted = memory.Bind(part.c_MN, many.data());
      for (int64_t i = 0; i < got.elements(); ++i) ASSERT_EQ(ElementOf(got, i), ElementOf(wanted, i)) << m << " " << n;
    }
  }
}

// The matmul in the head of a large vocabulary: b takes over 32 MiB and is packed in pieces.
struct LargeCase {
  int64_t m, n, k;
  bool transpose_b, bias = false, accumulate = false;
  DType c_dtype = DType::kFloat32;
};

MatMul LargeMatMul(const LargeCase& c, const Tensor& a, const Tensor& b, TestMemory& memory) {
  return {.a = a, .b = b, .c_MN = memory.Output(c.c_dtype, {c.m, c.n}), .transpose_b = c.transpose_b};
}

TEST(CpuMatMulTest, MatMulsInPiecesHaveTheSameBitsOnAnyNumberOfThreads) {
  if (LimitChangesNothing()) GTEST_SKIP();
  for (const LargeCase& c :
       ForThisProcessor(std::vector<LargeCase>{{512, 20011, 840, true, false, false, DType::kBFloat16},
                                               {520, 1027, 16411, false, false, false, DType::kBFloat16}})) {
    SCOPED_TRACE(::testing::Message() << c.m << " x " << c.n << " x " << c.k);
    TestMemory memory;
    const Tensor a = memory.Random(DType::kBFloat16, {c.m, c.k});
    const Tensor b =
        c.transpose_b ? memory.Random(DType::kBFloat16, {c.n, c.k}) : memory.Random(DType::kBFloat16, {c.k, c.n});
    const MatMul op = LargeMatMul(c, a, b, memory);
    for (const CpuMatMuls cpu_matmuls : kCpuMatMuls) {
      const std::vector<std::byte> one = RunOnThreads(cpu_matmuls, 1, memory, op);
      for (const int threads : {3, 64}) {
        EXPECT_TRUE(RunOnThreads(cpu_matmuls, threads, memory, op) == one) << ToString(cpu_matmuls) << ", " << threads;
      }
    }
  }
}

// With small integers sums are exact in any order, and rounded once.
// Numbers of fp8 become fp32 before they are multiplied. A number of a is multiplied by the scales, which rounds it.
TEST(CpuMatMulTest, MatMulsOfFloat8AreNearToExactOnesAndHaveTheSameBitsOnAnyNumberOfThreads) {
  if (LimitChangesNothing()) GTEST_SKIP();
  constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
  struct Case {
    int64_t m, n, k;
    DType a, b, c;
    bool accumulate = false;
  };
  for (const Case& s :
       {Case{530, 144, 352, kE4M3, kE4M3, DType::kBFloat16}, Case{600, 64, 1104, kE5M2, kE4M3, DType::kFloat32, true},
        Case{38, 384, 5008, kE4M3, kE5M2, DType::kFloat16}}) {
    SCOPED_TRACE(::testing::Message() << s.m << " x " << s.n << " x " << s.k);
    TestMemory memory;
    MatMul op{.a = memory.Random(s.a, {s.m, s.k}),
              .b = memory.Random(s.b, {s.n, s.k}),
              .scale_a = memory.Values(DType::kFloat32, {1}, {0.7}),
              .scale_b = memory.Values(DType::kFloat32, {1}, {1.3}),
              .transpose_b = true,
              .accumulate = s.accumulate};
    op.c_MN = s.accumulate ? memory.Random(s.c, {s.m, s.n}) : memory.Output(s.c, {s.m, s.n});
    std::vector<std::byte> one = RunOnThreads(CpuMatMuls::kPacked, 1, memory, op), want = RunOnReference(memory, op);
    for (const CpuMatMuls cpu_matmuls : kCpuMatMuls) {
      for (const int threads : {2, 3, 16})
        EXPECT_TRUE(RunOnThreads(cpu_matmuls, threads, memory, op) == one) << threads;
    }
    // K products of up to 0.91, and c, are summed in fp32. Each partial sum errs by at most one unit of its value, and
    // so does each scaled number. c is rounded once.
    const double terms = 0.91 * static_cast<double>(s.k) + 1;
    const Tensor got = memory.Bind(op.c_MN, one.data()), wanted = memory.Bind(op.c_MN, want.data());
    for (int64_t i = 0; i < got.elements(); ++i) {
      const double is = ElementOf(got, i), exact = ElementOf(wanted, i);
      const double rounding = s.c == DType::kFloat32 ? 0 : 2 * UnitOf(s.c) * std::abs(exact);
      ASSERT_LE(std::abs(is - exact), static_cast<double>(s.k + 3) * terms * kUnit32 + rounding) << i;
    }
  }
}

// Regression: oneDNN takes a row and a transposed column for one matrix, and answers with what it made first. Muon
// plans both products of a matrix with one row, and the one that had less scratch was refused when it ran.
TEST(CpuMatMulTest, AVectorNeedsTheSameScratchAsARowAndAsATransposedColumn) {
  const auto ops = CreateCpuOps({.threads = 1, .cpu_matmuls = CpuMatMuls::kOneDnn});
  for (const int64_t k : {1, 16, 24}) {
    const Tensor row = Tensor::Contiguous(DType::kFloat32, {1, k}),
                 column = Tensor::Contiguous(DType::kFloat32, {k, 1});
    const Tensor c = Tensor::Contiguous(DType::kFloat32, {1, 1});
    EXPECT_EQ(ops->ScratchBytes(MatMul{.a = row, .b = row, .c_MN = c, .transpose_b = true}),
              ops->ScratchBytes(MatMul{.a = column, .b = column, .c_MN = c, .transpose_a = true}))
        << k;
  }
}

TEST(CpuMatMulTest, LargeMatMulsOfWholeNumbersAreExact) {
  if (LimitChangesNothing()) GTEST_SKIP();
  std::mt19937 random(7);
  const auto draw = [&](int64_t count) {
    std::vector<double> values(count);
    for (double& value : values) value = static_cast<double>(random() % 9) - 4;
    return values;
  };
  for (const LargeCase& c :
       ForThisProcessor(std::vector<LargeCase>{{513, 20011, 840, true, true, false, DType::kBFloat16},
                                               {530, 20011, 840, false},
                                               {512, 1027, 16411, false, false, false, DType::kBFloat16},
                                               {544, 1027, 16411, true, false, true},
                                               // Few rows and a long K.
                                               {38, 384, 50257, false, true}})) {
    SCOPED_TRACE(::testing::Message() << c.m << " x " << c.n << " x " << c.k);
    const std::vector<double> a = draw(c.m * c.k), b = draw(c.k * c.n), bias = draw(c.n), before = draw(c.m * c.n);
    TestMemory memory;
    const Tensor a_tensor = memory.Values(DType::kBFloat16, {c.m, c.k}, a);
    const Tensor b_tensor =
        c.transpose_b ? memory.Values(DType::kBFloat16, {c.n, c.k}, b) : memory.Values(DType::kBFloat16, {c.k, c.n}, b);
    MatMul op = LargeMatMul(c, a_tensor, b_tensor, memory);
    if (c.bias) op.bias_N = memory.Values(DType::kBFloat16, {c.n}, bias);
    if (c.accumulate) {
      op.accumulate = true;
      op.c_MN = memory.Values(c.c_dtype, {c.m, c.n}, before);
    }
    for (const CpuMatMuls cpu_matmuls : kCpuMatMuls) {
      SCOPED_TRACE(ToString(cpu_matmuls));
      std::vector<std::byte> image = RunOnThreads(cpu_matmuls, 2, memory, op);
      const Tensor c_tensor = memory.Bind(op.c_MN, image.data());
      for (int sample = 0; sample < 2000; ++sample) {
        // The first 100 samples take the last element of a row.
        const int64_t m = random() % c.m, n = sample < 100 ? c.n - 1 : random() % c.n;
        double sum = c.accumulate ? before[m * c.n + n] : c.bias ? bias[n] : 0;
        for (int64_t k = 0; k < c.k; ++k) sum += a[m * c.k + k] * (c.transpose_b ? b[n * c.k + k] : b[k * c.n + n]);
        if (c.c_dtype == DType::kBFloat16) sum = ToFloat(RoundToBFloat16(static_cast<float>(sum)));
        ASSERT_EQ(ElementOf(c_tensor, m * c.n + n), sum) << "row " << m << ", column " << n;
      }
    }
  }
}

}  // namespace
}  // namespace shale::testing
