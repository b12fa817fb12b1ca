// Tests weights in 4 bits: the bytes are those of bitsandbytes, and every backend reads them alike.
#include "kernels/nf4.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/hash.h"
#include "kernels/integers.h"
#include "kernels/ops/quantized.h"
#include "tests/kernels/nf4_goldens.h"
#include "tests/kernels/op_conformance.h"

namespace shale::testing {
namespace {

// Returns the same number as weights() of make_nf4_goldens.py.
float GoldenWeight(int64_t i) {
  uint32_t x = static_cast<uint32_t>(i + 100000 * kNf4GoldenSeries) * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  const double uniform = (static_cast<double>(x >> 24) + 0.5) * 0x1p-7 - 1;
  return static_cast<float>(uniform * static_cast<double>(32 + i / 64 % 61) * 0x1p-10);
}

uint64_t Digest(const void* data, size_t size) { return Fnv1a({static_cast<const char*>(data), size}); }

// Quantizes a parameter into a row, whose other bytes stay as they are.
void Quantize(absl::Span<const float> weights, const Nf4Row& row, uint8_t* bytes) {
  std::vector<float> absmax;
  for (size_t i = 0; i < weights.size(); i += kNf4BlockWeights) {
    absmax.push_back(QuantizeNf4Block(weights.subspan(i, kNf4BlockWeights), bytes + i / 2));
  }
  const float mean = MeanOfAbsmax(absmax);
  for (size_t g = 0; g * kNf4GroupBlocks < absmax.size(); ++g) {
    const auto group = absl::MakeConstSpan(absmax).subspan(g * kNf4GroupBlocks, kNf4GroupBlocks);
    const float scale = QuantizeAbsmax(group, mean, bytes + row.absmax_begin() + g * kNf4GroupBlocks);
    std::memcpy(bytes + row.scales_begin() + g * sizeof(float), &scale, sizeof(float));
    std::memcpy(bytes + row.means_begin() + g * sizeof(float), &mean, sizeof(float));
  }
}

TEST(Nf4, BytesAndWeightsAreThoseOfBitsAndBytes) {
  std::vector<float> weights(kNf4GoldenWeights);
  for (int64_t i = 0; i < kNf4GoldenWeights; ++i) weights[i] = GoldenWeight(i);
  const Nf4Row row{RoundUp(kNf4GoldenWeights, kNf4GroupWeights)};
  std::vector<uint8_t> bytes(row.bytes());
  Quantize(weights, row, bytes.data());
  for (int code = 0; code < kNf4Codes; ++code) {
    EXPECT_EQ(std::bit_cast<uint32_t>(Nf4Value(code)), kNf4GoldenValues[code]) << code;
  }
  for (size_t i = 0; i < std::size(kNf4GoldenFirstCodes); ++i) EXPECT_EQ(bytes[i], kNf4GoldenFirstCodes[i]) << i;
  EXPECT_EQ(Digest(bytes.data(), kNf4GoldenWeights / 2), kNf4GoldenCodesDigest);
  EXPECT_EQ(bytes[kNf4GoldenWeights / 2] >> 4, kNf4GoldenLastCode);
  for (size_t i = 0; i < std::size(kNf4GoldenAbsmax); ++i) {
    EXPECT_EQ(bytes[row.absmax_begin() + i], kNf4GoldenAbsmax[i]) << i;
  }
  const auto word = [&](int64_t at) {
    uint32_t bits;
    std::memcpy(&bits, bytes.data() + at, sizeof(bits));
    return bits;
  };
  std::vector<float> back;
  for (int64_t g = 0; g < row.groups(); ++g) {
    const int64_t at = g * static_cast<int64_t>(sizeof(float));
    EXPECT_EQ(word(row.scales_begin() + at), kNf4GoldenScales[g]);
    EXPECT_EQ(word(row.means_begin() + at), kNf4GoldenMean[0]);
    std::vector<float> of_group(std::min(kNf4GroupWeights, kNf4GoldenWeights - g * kNf4GroupWeights));
    DequantizeNf4(bytes.data() + g * kNf4GroupWeights / 2, bytes.data() + row.absmax_begin() + g * kNf4GroupBlocks,
                  std::bit_cast<float>(kNf4GoldenScales[g]), std::bit_cast<float>(kNf4GoldenMean[0]),
                  absl::MakeSpan(of_group));
    back.insert(back.end(), of_group.begin(), of_group.end());
  }
  EXPECT_EQ(Digest(back.data(), back.size() * sizeof(float)), kNf4GoldenWeightsDigest);
}

// Unlike in bitsandbytes, whose code of a zero in a block of zeros is that of -1.
TEST(Nf4, ABlockOfZerosStaysZeroAndNonFiniteWeightsShowInTheAbsmax) {
  std::vector<float> weights(2 * kNf4BlockWeights, 0);
  for (int64_t i = 0; i < kNf4BlockWeights; ++i) weights[i] = GoldenWeight(i);
  const Nf4Row row{kNf4GroupWeights};
  std::vector<uint8_t> bytes(row.bytes());
  Quantize(weights, row, bytes.data());
  float scale, mean;
  std::memcpy(&scale, bytes.data() + row.scales_begin(), sizeof(scale));
  std::memcpy(&mean, bytes.data() + row.means_begin(), sizeof(mean));
  std::vector<float> back(weights.size());
  DequantizeNf4(bytes.data(), bytes.data() + row.absmax_begin(), scale, mean, absl::MakeSpan(back));
  for (int64_t i = kNf4BlockWeights; i < std::ssize(back); ++i) EXPECT_EQ(back[i], 0) << i;
  for (const float wrong : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    for (const size_t at : {0, 17, 63}) {
      std::vector<float> block(weights.begin(), weights.begin() + kNf4BlockWeights);
      block[at] = wrong;
      EXPECT_FALSE(std::isfinite(QuantizeNf4Block(block, bytes.data()))) << at;
      EXPECT_FALSE(std::isfinite(AbsmaxOfNf4Block(block))) << at;
    }
  }
}

OpCase Nf4Case(DType act, int64_t rows, int64_t groups) {
  OpCase c{.name = "Nf4Dequantize_" + NameOf(act) + "_" + std::to_string(rows) + "x" + std::to_string(groups)};
  const Nf4Row row{groups * kNf4GroupWeights};
  std::vector<float> weights(row.weights);
  std::vector<uint8_t> bytes(row.bytes());
  std::vector<double> stored;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < row.weights; ++i) weights[i] = GoldenWeight(r * row.weights + i);
    Quantize(weights, row, bytes.data());
    stored.insert(stored.end(), bytes.begin(), bytes.end());
  }
  c.op = Nf4Dequantize{.stored_RP = c.memory.Values(DType::kUInt8, {rows, row.bytes()}, stored),
                       .out_RN = c.memory.Output(act, {rows, row.weights})};
  return c;  // Every product and every sum is rounded once: the same bits everywhere.
}

std::vector<OpCase> Nf4Cases() {
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    cases.push_back(Nf4Case(act, 1, 1));
    cases.push_back(Nf4Case(act, 3, 2));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Nf4, OpConformance, ::testing::ValuesIn(Nf4Cases()), CaseName);

TEST(Nf4, RowsThatDoNotFitTheirWeightsAreRefused) {
  TestMemory memory;
  const Nf4Row row{kNf4GroupWeights};
  const Tensor out = memory.Output(DType::kFloat32, {1, row.weights});
  const Nf4Dequantize op{memory.RandomIntegers(DType::kUInt8, {1, row.bytes()}, 0, 256), out};
  ExpectRefused(Nf4Dequantize{op.stored_RP.Slice(1, 0, row.bytes() - 1), out}, {"stored is u8[1, 8455]"});
  ExpectRefused(Nf4Dequantize{op.stored_RP, out.Slice(1, 0, row.weights - 64)}, {"a multiple of 16384 weights"});
}

}  // namespace
}  // namespace shale::testing
