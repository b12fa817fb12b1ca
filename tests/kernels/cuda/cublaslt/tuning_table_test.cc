#include "kernels/cuda/cublaslt/tuning_table.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

using ::testing::HasSubstr;

const TuningTable::Machine kH200 = {.gpu = "NVIDIA H200", .library_version = 130100};

MatMul Op(int64_t m, int64_t n, int64_t k, DType act = DType::kBFloat16) {
  return {.a = Tensor::Contiguous(act, {m, k}),
          .b = Tensor::Contiguous(act, {k, n}),
          .c_MN = Tensor::Contiguous(DType::kFloat32, {m, n})};
}

MatMulAlgorithm Algorithm(uint64_t first) { return {first, 1, 2, 3, 4, 5, 6, ~uint64_t{0}}; }

TuningTable Sample() {
  TuningTable table;
  EXPECT_TRUE(table.Set(kH200, MatMulKey::Of(Op(64, 32, 16), false), Algorithm(10)).ok());
  EXPECT_TRUE(table.Set(kH200, MatMulKey::Of(Op(64, 32, 8), false), Algorithm(11)).ok());
  EXPECT_TRUE(table.Set({"NVIDIA A100", 120900}, MatMulKey::Of(Op(64, 32, 16), false), Algorithm(12)).ok());
  return table;
}

std::string Refusal(const std::string& text) {
  const auto table = TuningTable::Parse(text);
  if (table.ok()) return "accepted";
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(table.status().message());
}

TEST(MatMulKeyTest, RowsAndColumnsOfTheOpBecomeSizesAndStrides) {
  MatMul op = Op(4, 6, 8);
  op.transpose_a = true;
  op.a = Tensor::Contiguous(DType::kBFloat16, {8, 20}).Slice(1, 4, 4);
  const MatMulKey key = MatMulKey::Of(op, /*allow_tf32=*/true);
  EXPECT_EQ(
      key.ToString(),
      "a=bf16 b=bf16 c=f32 ta=1 tb=0 m=4 n=6 k=8 lda=20 ldb=6 ldc=6 align_a=8 align_b=256 align_c=256 align_bias=0 "
      "bias=0 accumulate=0 tf32=0 fast=0 scales=one");
}

TEST(MatMulKeyTest, AlignmentIsThatOfTheAddressOrOfThePlaceInItsBuffer) {
  MatMul op = Op(4, 6, 8);
  op.a.where = {.symbol = 1, .offset_bytes = 96};
  op.b.where = {.symbol = 2, .offset_bytes = 512, .shard_stride_bytes = 48};
  MatMulKey key = MatMulKey::Of(op, false);
  EXPECT_EQ(key.align_a, 32);
  EXPECT_EQ(key.align_b, 16);
  EXPECT_EQ(key.align_c, 256);
  op.a.data = reinterpret_cast<void*>(0x10002);
  op.b.data = reinterpret_cast<void*>(0x10000);
  key = MatMulKey::Of(op, false);
  EXPECT_EQ(key.align_a, 2);
  EXPECT_EQ(key.align_b, 256);
}

TEST(MatMulKeyTest, AStrideThatIsNeverUsedMakesNoOtherMatMul) {
  MatMul op = Op(1, 6, 8);
  const MatMulKey key = MatMulKey::Of(op, false);
  op.a.strides[0] = 1000;
  EXPECT_EQ(key, MatMulKey::Of(op, false));
}

TEST(MatMulKeyTest, TheMatMulAddsABiasOfItsOwnTypeOnly) {
  MatMul op = Op(4, 8, 8);
  op.bias_N = Tensor::Contiguous(DType::kBFloat16, {8});
  MatMulKey key = MatMulKey::Of(op, false);
  EXPECT_FALSE(key.bias);
  EXPECT_TRUE(key.accumulate);
  op.c_MN.dtype = DType::kBFloat16;
  key = MatMulKey::Of(op, false);
  EXPECT_TRUE(key.bias);
  EXPECT_FALSE(key.accumulate);
  EXPECT_EQ(key.align_bias, 256);
}

TEST(MatMulKeyTest, OnlyMatMulsOfF32MayBeRounded) {
  EXPECT_TRUE(MatMulKey::Of(Op(4, 6, 8, DType::kFloat32), true).tf32);
  EXPECT_FALSE(MatMulKey::Of(Op(4, 6, 8, DType::kFloat32), false).tf32);
  EXPECT_FALSE(MatMulKey::Of(Op(4, 6, 8), true).tf32);
}

MatMul Float8Op(DType a, DType b, DType c, bool fast) {
  const Tensor scale = Tensor::Contiguous(DType::kFloat32, {1});
  return {.a = Tensor::Contiguous(a, {4, 32}),
          .b = Tensor::Contiguous(b, {48, 32}),
          .c_MN = Tensor::Contiguous(c, {4, 48}),
          .scale_a = scale,
          .scale_b = scale,
          .transpose_b = true,
          .fast_accumulation = fast};
}

TEST(MatMulKeyTest, WhatItPrintsItReads) {
  constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
  MatMul blocks = Float8Op(kE4M3, kE4M3, DType::kFloat16, false);
  blocks.scales = Float8Scales::kBlocks;
  for (const MatMul& op : {Op(4, 6, 8, DType::kFloat32), blocks, Float8Op(kE4M3, kE4M3, DType::kFloat16, true),
                           Float8Op(kE5M2, kE4M3, DType::kFloat32, false)}) {
    const MatMulKey key = MatMulKey::Of(op, true);
    const auto read = MatMulKey::Parse(key.ToString());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, key);
  }
}

TEST(MatMulKeyTest, FormatsAndFastAccumulationMakeOtherMatMuls) {
  constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
  std::set<MatMulKey> keys;
  for (const DType a : {kE4M3, kE5M2}) {
    for (const bool fast : {false, true}) {
      keys.insert(MatMulKey::Of(Float8Op(a, kE4M3, DType::kFloat32, fast), false));
      keys.insert(MatMulKey::Of(Float8Op(kE4M3, a, DType::kFloat32, fast), false));
    }
  }
  EXPECT_EQ(keys.size(), 6u);
  const std::string good = MatMulKey::Of(Float8Op(kE4M3, kE4M3, DType::kFloat32, true), false).ToString();
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"a=f8e4m3 b=f8e4m3", "a=f8e5m2 b=f8e5m2"},
                                                        {"b=f8e4m3", "b=bf16"},
                                                        {"tb=1", "tb=0"},
                                                        {"ta=0", "ta=1"},
                                                        {"n=48", "n=40"},
                                                        {"c=f32", "c=f8e4m3"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_FALSE(MatMulKey::Parse(bad).ok()) << bad;
  }
}

// The library has no bias in f32 for operands in fp8.
TEST(MatMulKeyTest, ABiasOfFloat8IsAddedByTheMatMulUnlessTheResultIsF32) {
  for (const DType c : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    MatMul op = Float8Op(DType::kFloat8E4M3, DType::kFloat8E4M3, c, true);
    op.bias_N = Tensor::Contiguous(c, {48});
    const MatMulKey key = MatMulKey::Of(op, false);
    EXPECT_EQ(key.bias, c != DType::kFloat32);
    EXPECT_EQ(key.accumulate, c == DType::kFloat32);
  }
}

TEST(MatMulKeyTest, WhatIsNoMatMulIsRefused) {
  const std::string good = MatMulKey::Of(Op(4, 6, 8), false).ToString();
  const std::vector<std::pair<std::string, std::string>> changes = {{"a=bf16", "a=i32"},
                                                                    {"a=bf16", "a="},
                                                                    {"b=bf16", "b=f16"},
                                                                    {"a=bf16", "a=f8e4m3"},
                                                                    {"c=f32", "c=f64"},
                                                                    {"m=4", "m=0"},
                                                                    {"m=4", "m=-4"},
                                                                    {"m=4", "m=04"},
                                                                    {"m=4", "m= 4"},
                                                                    {"m=4", "m=4x"},
                                                                    {"m=4", "m=9223372036854775808"},
                                                                    {"k=8", "k=9"},
                                                                    {"ldc=6", "ldc=5"},
                                                                    {"ldb=6", "ldb=5"},
                                                                    {"align_a=256", "align_a=512"},
                                                                    {"align_a=256", "align_a=3"},
                                                                    {"align_a=256", "align_a=1"},
                                                                    {"bias=0 acc", "bias=1 acc"},
                                                                    {"accumulate=0", "accumulate=2"},
                                                                    {"ta=0", "ta=2"},
                                                                    {"ta=0 tb=0", "tb=0 ta=0"},
                                                                    {"tf32=0", "tf32=1"},
                                                                    {"scales=one", "scales=one x=1"},
                                                                    {"fast=0", "fast=1"},
                                                                    {"scales=one", "scales=tiles"},
                                                                    {" scales=one", ""}};
  for (const auto& [from, to] : changes) {
    std::string bad = good;
    const size_t at = bad.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    bad.replace(at, from.size(), to);
    EXPECT_FALSE(MatMulKey::Parse(bad).ok()) << bad;
  }
  EXPECT_FALSE(MatMulKey::Parse("").ok());
}

TEST(TuningTableTest, AnswersForTheMachineThatWasMeasuredOnly) {
  const TuningTable table = Sample();
  const MatMulKey key = MatMulKey::Of(Op(64, 32, 16), false);
  ASSERT_NE(table.Find(kH200, key), nullptr);
  EXPECT_EQ(*table.Find(kH200, key), Algorithm(10));
  EXPECT_EQ(table.Find({"NVIDIA H200", 130200}, key), nullptr);
  EXPECT_EQ(table.Find({"NVIDIA H100", 130100}, key), nullptr);
  EXPECT_EQ(table.Find(kH200, MatMulKey::Of(Op(64, 32, 24), false)), nullptr);
  EXPECT_EQ(table.size(), 3);
}

TEST(TuningTableTest, WhatItPrintsItReads) {
  const TuningTable table = Sample();
  const auto read = TuningTable::Parse(table.Print());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Print(), table.Print());
  EXPECT_EQ(read->size(), 3);
  EXPECT_EQ(*read->Find(kH200, MatMulKey::Of(Op(64, 32, 8), false)), Algorithm(11));
}

TEST(TuningTableTest, TheDigestIsOfTheContentsAndNotOfTheirOrder) {
  TuningTable other;
  const MatMulKey key = MatMulKey::Of(Op(64, 32, 16), false);
  EXPECT_TRUE(other.Set({"NVIDIA A100", 120900}, key, Algorithm(12)).ok());
  EXPECT_TRUE(other.Set(kH200, MatMulKey::Of(Op(64, 32, 8), false), Algorithm(11)).ok());
  EXPECT_TRUE(other.Set(kH200, key, Algorithm(99)).ok());
  EXPECT_NE(other.Digest(), Sample().Digest());
  EXPECT_TRUE(other.Set(kH200, key, Algorithm(10)).ok());
  EXPECT_EQ(other.Digest(), Sample().Digest());
  EXPECT_EQ(other.Digest().size(), 16u);
  const auto read = TuningTable::Parse("# measured\n\n" + Sample().Print());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Digest(), Sample().Digest());
}

TEST(TuningTableTest, AMachineThatCouldNotBeReadAgainIsRefused) {
  TuningTable table;
  const MatMulKey key = MatMulKey::Of(Op(64, 32, 16), false);
  for (const TuningTable::Machine& machine :
       {TuningTable::Machine{"", 1}, {"a\nb", 1}, {" a", 1}, {"a", 0}, {"a", -1}, {std::string(200, 'a'), 1}}) {
    EXPECT_EQ(table.Set(machine, key, Algorithm(1)).code(), absl::StatusCode::kInvalidArgument) << machine.gpu;
  }
  const TuningTable::Machine odd = {"GPU, cublaslt 5", 7};
  EXPECT_TRUE(table.Set(odd, key, Algorithm(1)).ok());
  const auto read = TuningTable::Parse(table.Print());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_NE(read->Find(odd, key), nullptr);
}

TEST(TuningTableTest, HostileTextIsRefusedByLine) {
  const std::string title = "shale cublaslt algorithms 3\n", on = "on NVIDIA H200, cublaslt 130100\n";
  const std::string key = MatMulKey::Of(Op(64, 32, 16), false).ToString();
  const std::string words =
      "000000000000000a 0000000000000001 0000000000000002 0000000000000003 0000000000000004 0000000000000005 "
      "0000000000000006 ffffffffffffffff";
  const std::string matmul = key + " -> " + words + "\n";
  ASSERT_EQ(Refusal(title + on + matmul), "accepted");
  EXPECT_THAT(Refusal(""), HasSubstr("found no line"));
  EXPECT_THAT(Refusal("shale cublaslt algorithms 1\n"), HasSubstr("line 1: wanted \"shale cublaslt algorithms 3\""));
  EXPECT_THAT(Refusal(on + title), HasSubstr("line 1"));
  EXPECT_THAT(Refusal(title + matmul), HasSubstr("line 2: found a matmul before the line that names its machine"));
  EXPECT_THAT(Refusal(title + on + matmul + matmul), HasSubstr("line 4: this matmul already has an algorithm"));
  EXPECT_THAT(Refusal(title + on + on + matmul + on + matmul), HasSubstr("line 6: this matmul"));
  EXPECT_THAT(Refusal(title + "on , cublaslt 130100\n"), HasSubstr("line 2"));
  EXPECT_THAT(Refusal(title + "on H200, cublaslt 0\n"), HasSubstr("line 2"));
  EXPECT_THAT(Refusal(title + "on H200, cublaslt 0130100\n"), HasSubstr("line 2"));
  EXPECT_THAT(Refusal(title + "on H200\n"), HasSubstr("line 2"));
  EXPECT_THAT(Refusal(title + "on, cublaslt 1\n"), HasSubstr("line 2"));
  EXPECT_THAT(Refusal(title + on + key + " -> " + words.substr(17) + "\n"), HasSubstr("line 3: wanted an algorithm"));
  EXPECT_THAT(Refusal(title + on + key + " -> " + words + " 0\n"), HasSubstr("line 3"));
  EXPECT_THAT(Refusal(title + on + key + " -> 000000000000000A" + words.substr(16) + "\n"), HasSubstr("line 3"));
  EXPECT_THAT(Refusal(title + on + key + " -> 0x00000000000000" + words.substr(16) + "\n"), HasSubstr("line 3"));
  EXPECT_THAT(Refusal(title + on + "rubbish\n"), HasSubstr("line 3: wanted \"on ...\""));
  EXPECT_THAT(Refusal(title + on + "\r\n"), HasSubstr("line 3"));
  EXPECT_THAT(Refusal(title + std::string(size_t{17} << 20, '#')), HasSubstr("bytes"));
  EXPECT_THAT(Refusal(std::string(1000, '\0')), HasSubstr("line 1"));
}

}  // namespace
}  // namespace shale::cuda
