// Tests that written files read back and have the bytes that the format demands, and that files of other programs are
// readable.
#include "engine/files/checkpoint/safetensors.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/integers.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Type = SafetensorsDType;
using Entry = SafetensorsWriter::Entry;

absl::string_view Bytes(const void* data, size_t size) {
  return absl::string_view(static_cast<const char*>(data), size);
}

TEST(SafetensorsTest, WhatIsWrittenReadsBack) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  const std::vector<float> weight = {1, -2.5, 3e-30f, 0, std::numeric_limits<float>::infinity(), -0.0f};
  const int64_t step = 42;
  auto writer = SafetensorsWriter::Create(path,
                                          {{"weight", Type::kF32, {2, 3}},
                                           {"bias", Type::kBF16, {3}},
                                           {"step", Type::kI64, {}},
                                           {"none", Type::kF32, {4, 0}}},
                                          {{"format", "pt"}, {"note", "a \"quoted\"\nline"}})
                    .value();
  ASSERT_TRUE(writer->AppendFloat32("bias", {1.0f, 2.0f}).ok());
  ASSERT_TRUE(writer->AppendFloat32("weight", absl::MakeSpan(weight).subspan(0, 1)).ok());
  ASSERT_TRUE(writer->Append("step", Bytes(&step, 8)).ok());
  ASSERT_TRUE(writer->AppendFloat32("weight", absl::MakeSpan(weight).subspan(1)).ok());
  ASSERT_TRUE(writer->AppendFloat32("bias", {3.0f}).ok());
  ASSERT_TRUE(writer->Finish().ok());

  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  EXPECT_THAT(reader.metadata(), ElementsAre(Pair("format", "pt"), Pair("note", "a \"quoted\"\nline")));
  ASSERT_EQ(reader.tensors().size(), 4);
  const SafetensorsTensor* tensor = reader.Find("weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->dtype, Type::kF32);
  EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
  EXPECT_EQ(tensor->elements(), 6);
  std::vector<float> floats(6);
  ASSERT_TRUE(reader.ReadFloat32(*tensor, 0, absl::MakeSpan(floats)).ok());
  EXPECT_EQ(floats, weight);
  EXPECT_TRUE(std::signbit(floats[5]));
  floats.resize(2);
  ASSERT_TRUE(reader.ReadFloat32(*tensor, 1, absl::MakeSpan(floats)).ok());
  EXPECT_THAT(floats, ElementsAre(-2.5f, 3e-30f));
  ASSERT_TRUE(reader.ReadFloat32(*reader.Find("bias"), 1, absl::MakeSpan(floats)).ok());
  EXPECT_THAT(floats, ElementsAre(2, 3));
  int64_t read_step = 0;
  ASSERT_TRUE(reader.Read(*reader.Find("step"), 0, absl::MakeSpan(reinterpret_cast<char*>(&read_step), 8)).ok());
  EXPECT_EQ(read_step, 42);
  EXPECT_EQ(reader.Find("none")->elements(), 0);
  EXPECT_EQ(reader.Find("other"), nullptr);
}

TEST(SafetensorsTest, TheFileIsTheFormatByteForByte) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  auto writer =
      SafetensorsWriter::Create(path, {{"b", Type::kU8, {3}}, {"c", Type::kF32, {}}, {"a", Type::kI8, {1}}}, {})
          .value();
  const float value = 1;
  ASSERT_TRUE(writer->Append("b", "xyz").ok());
  ASSERT_TRUE(writer->Append("a", "A").ok());
  ASSERT_TRUE(writer->Append("c", Bytes(&value, 4)).ok());
  ASSERT_TRUE(writer->Finish().ok());
  std::string header =
      R"({"c":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[1],"data_offsets":[4,5]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})";
  header.resize(RoundUp(std::ssize(header), 8), ' ');
  const uint64_t length = header.size();
  EXPECT_EQ(ReadFile(path, 1000).value(),
            absl::StrCat(Bytes(&length, 8), header, std::string("\0\0\x80\x3F", 4), "Axyz"));
}

TEST(SafetensorsTest, AFileWithoutTensorsIsAFile) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  ASSERT_TRUE(SafetensorsWriter::Create(path, {}, {}).value()->Finish().ok());
  EXPECT_TRUE(SafetensorsReader::Open(path).value().tensors().empty());
}

TEST(SafetensorsTest, EveryHalfIsReadExactly) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = i;
  auto writer = SafetensorsWriter::Create(path, {{"x", Type::kF16, {65536}}}, {}).value();
  ASSERT_TRUE(writer->Append("x", Bytes(halves.data(), 2 * halves.size())).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::vector<float> floats(65536);
  ASSERT_TRUE(reader.ReadFloat32(*reader.Find("x"), 0, absl::MakeSpan(floats)).ok());
  for (int i = 0; i < 65536; ++i) {
    const double sign = i & 0x8000 ? -1 : 1;
    const int exponent = i >> 10 & 31;
    const int fraction = i & 1023;
    if (exponent == 31) {
      EXPECT_TRUE(fraction == 0 ? std::isinf(floats[i]) : std::isnan(floats[i])) << i;
    } else {
      const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(floats[i], sign * magnitude) << i;
    }
    EXPECT_EQ(std::signbit(floats[i]), (i & 0x8000) != 0) << i;
  }
}

TEST(SafetensorsTest, BFloat16RoundsToNearestEvenWhateverThePieces) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  std::mt19937 random(5);
  std::vector<float> values(10000);
  for (float& value : values) value = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0xBFFFFFFF);
  auto writer = SafetensorsWriter::Create(path, {{"x", Type::kBF16, {10, 1000}}}, {}).value();
  ASSERT_TRUE(writer->AppendFloat32("x", absl::MakeSpan(values).subspan(0, 7777)).ok());
  ASSERT_TRUE(writer->AppendFloat32("x", absl::MakeSpan(values).subspan(7777)).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::vector<float> read(values.size());
  ASSERT_TRUE(reader.ReadFloat32(*reader.Find("x"), 0, absl::MakeSpan(read)).ok());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(read[i], ToFloat(RoundToBFloat16(values[i])));
}

TEST(SafetensorsTest, ReadsBeyondATensorAreRefused) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"a", Type::kF32, {2}}, {"b", Type::kF64, {1}}}, {}).value();
  ASSERT_TRUE(writer->AppendFloat32("a", {1, 2}).ok());
  ASSERT_TRUE(writer->Append("b", "12345678").ok());
  ASSERT_TRUE(writer->Finish().ok());
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::vector<float> two(2);
  const absl::Status status = reader.ReadFloat32(*reader.Find("a"), 1, absl::MakeSpan(two));
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor a has 2 elements; asked for 2 from number 1"));
  EXPECT_FALSE(reader.ReadFloat32(*reader.Find("a"), -1, absl::MakeSpan(two)).ok());
  EXPECT_FALSE(reader.ReadFloat32(*reader.Find("a"), std::numeric_limits<int64_t>::max(), absl::MakeSpan(two)).ok());
  EXPECT_TRUE(reader.ReadFloat32(*reader.Find("a"), 2, absl::MakeSpan(two).subspan(2)).ok());
  EXPECT_THAT(std::string(reader.ReadFloat32(*reader.Find("b"), 0, absl::MakeSpan(two).subspan(1)).message()),
              HasSubstr("tensor b is of dtype F64; expected F32, F16 or BF16"));
}

TEST(SafetensorsTest, AnIncompleteFileNeverAppears) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  {
    auto writer = SafetensorsWriter::Create(path, {{"a", Type::kF32, {2}}, {"b", Type::kU8, {3}}}, {}).value();
    ASSERT_TRUE(writer->AppendFloat32("a", {1}).ok());
    const absl::Status status = writer->Finish();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not complete: a (4 of 8 bytes), b (0 of 3 bytes)"));
  }
  EXPECT_EQ(folder.CountEntries(), 0);
}

TEST(SafetensorsTest, TheWriterRefusesWhatDoesNotFit) {
  const TempFolder folder;
  const std::string path = folder.Path("a.safetensors");
  const auto refusal = [&](const std::vector<Entry>& entries) {
    return std::string(SafetensorsWriter::Create(path, entries, {}).status().message());
  };
  EXPECT_THAT(refusal({{"a", Type::kF32, {2}}, {"a", Type::kF32, {2}}}), HasSubstr("tensor a is given twice"));
  EXPECT_THAT(refusal({{"__metadata__", Type::kF32, {2}}}), HasSubstr("cannot be named"));
  EXPECT_THAT(refusal({{"\xFF", Type::kF32, {2}}}), HasSubstr("must be UTF-8"));
  EXPECT_THAT(refusal({{"a", Type::kF32, {-1}}}), HasSubstr("dimension -1 is negative"));
  EXPECT_THAT(refusal({{"a", Type::kF4, {3}}}), HasSubstr("12 bits"));
  EXPECT_THAT(refusal({{"a", Type::kF32, {int64_t{1} << 40, int64_t{1} << 40}}}), HasSubstr("can be counted"));
  std::vector<Entry> many;
  for (int i = 0; i < 16; ++i) many.push_back({absl::StrCat(i), Type::kU8, {int64_t{1} << 59}});
  EXPECT_THAT(refusal(many), HasSubstr("more bytes than can be counted"));
  EXPECT_FALSE(SafetensorsWriter::Create(path, {}, {{"key", "\xFF"}}).ok());
  EXPECT_THAT(std::string(SafetensorsWriter::Create("/none/a", {}, {}).status().message()),
              HasSubstr("/none/a: No such"));

  auto writer = SafetensorsWriter::Create(path, {{"a", Type::kU8, {3}}}, {}).value();
  EXPECT_EQ(writer->Append("b", "x").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(writer->Append("a", "12").ok());
  EXPECT_THAT(std::string(writer->Append("a", "34").message()), HasSubstr("of which 1 are missing; 2 more do not fit"));
  EXPECT_THAT(std::string(writer->AppendFloat32("a", {1}).message()), HasSubstr("written as F32, F16 or BF16"));
}

TEST(SafetensorsTest, EveryDTypeHasItsName) {
  EXPECT_EQ(ToString(Type::kF8_E4M3FNUZ), "F8_E4M3FNUZ");
  EXPECT_EQ(ToString(Type::kBF16), "BF16");
  EXPECT_EQ(BitsPerElement(Type::kF6_E2M3), 6);
  EXPECT_EQ(BitsPerElement(Type::kF64), 64);
}

// The format's own library wrote this file, called by PyTorch.
TEST(SafetensorsTest, ReadsWhatOthersWrite) {
  const SafetensorsReader reader = SafetensorsReader::Open("tests/parity/golden/llama.safetensors").value();
  EXPECT_GT(reader.tensors().size(), 10);
  EXPECT_TRUE(reader.metadata().contains("model"));
  for (const SafetensorsTensor& tensor : reader.tensors()) {
    if (tensor.dtype != Type::kF32) continue;
    std::vector<float> values(tensor.elements());
    ASSERT_TRUE(reader.ReadFloat32(tensor, 0, absl::MakeSpan(values)).ok());
    for (const float value : values) ASSERT_TRUE(std::isfinite(value)) << tensor.name;
  }
}

}  // namespace
}  // namespace shale
