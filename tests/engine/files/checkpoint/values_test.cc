// CheckpointValues returns what was written, bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/shard_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/integers.h"
#include "tests/engine/files/checkpoint/sample_state.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

constexpr SavedPart kParts[] = {SavedPart::kValue, StatePart(0), StatePart(1)};

class ValuesTest : public ::testing::TestWithParam<SampleForm> {
 protected:
  void Open(const SampleState& state) {
    state.WriteCheckpoint(temp_.Path("c"), GetParam());
    absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(temp_.Path("c"));
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader_ = std::make_unique<CheckpointReader>(*std::move(reader));
  }
  void ExpectRange(SampleState& state, CheckpointValues& values, SavedPart part, int parameter, int64_t begin,
                   int64_t end) {
    const std::vector<float>& expected = state.Elements(part, parameter);
    std::vector<float> read(end - begin, -7.0f);
    const std::string& name = state.parameters()[parameter].name;
    ASSERT_TRUE(values.Read(part, name, begin, absl::MakeSpan(read)).ok());
    for (int64_t i = begin; i < end; ++i) {
      const float value = part == SavedPart::kValue ? SampleState::AsRead(expected[i], GetParam().values) : expected[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(read[i - begin]), std::bit_cast<uint32_t>(value))
          << name << " " << NameOf(part, AdamWStates()) << " " << i;
    }
  }

  TempFolder temp_;
  std::unique_ptr<CheckpointReader> reader_;
};

INSTANTIATE_TEST_SUITE_P(Forms, ValuesTest,
                         ::testing::Values(SampleForm{.ranks = 1, .values = SavedValues::kFloat32},
                                           SampleForm{.ranks = 1, .values = SavedValues::kSplit},
                                           SampleForm{.ranks = 3, .values = SavedValues::kFloat32},
                                           SampleForm{.ranks = 3, .values = SavedValues::kBFloat16},
                                           SampleForm{.ranks = 3, .values = SavedValues::kSplit}),
                         [](const auto& info) {
                           return absl::StrCat(ToString(info.param.values), "On", info.param.ranks);
                         });

TEST_P(ValuesTest, EveryRangeOfASmallParameterIsAsWritten) {
  SampleState state({{"before", {5}}, {"p", {29}}, {"one", {}}}, 3);
  Open(state);
  CheckpointValues values(*reader_);
  for (SavedPart part : kParts) {
    for (int64_t begin = 0; begin <= 29; ++begin) {
      for (int64_t end = begin; end <= 29; ++end) ExpectRange(state, values, part, 1, begin, end);
    }
    ExpectRange(state, values, part, 2, 0, 1);
  }
}

TEST_P(ValuesTest, AFrozenParameterHasAFormOfItsOwnAndNoStates) {
  SampleState state = SmallSample();
  for (const SavedValues frozen : {SavedValues::kFloat32, SavedValues::kBFloat16}) {
    SampleForm form = GetParam();
    form.frozen = 1;
    form.frozen_values = frozen;
    TempFolder temp;
    state.WriteCheckpoint(temp.Path("c"), form);
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(temp.Path("c"));
    ASSERT_TRUE(reader.ok()) << reader.status();
    CheckpointValues values(*reader);
    for (const int parameter : {0, 1}) {
      const std::vector<float>& expected = state.Elements(SavedPart::kValue, parameter);
      std::vector<float> read(expected.size());
      ASSERT_TRUE(values.Read(state.parameters()[parameter].name, 0, absl::MakeSpan(read)).ok());
      for (size_t i = 0; i < read.size(); ++i) {
        const float value = SampleState::AsRead(expected[i], parameter == 1 ? frozen : form.values);
        ASSERT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(value)) << parameter << " " << i;
      }
    }
    std::vector<float> one(1);
    EXPECT_EQ(values.Read(StatePart(0), "block.weight", 0, absl::MakeSpan(one)).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST_P(ValuesTest, RangesAcrossChunksAndRanksAreAsWritten) {
  SampleState state = LargeSample();
  Open(state);
  CheckpointValues values(*reader_);
  for (SavedPart part : kParts) {
    for (int parameter = 0; parameter < 3; ++parameter) {
      ExpectRange(state, values, part, parameter, 0, state.parameters()[parameter].elements());
    }
  }
  // Jumps back and forth, so that some chunks come from the cache and others are read again.
  std::mt19937_64 random(5);
  const int64_t elements = state.parameters()[0].elements();
  for (int i = 0; i < 60; ++i) {
    const int64_t begin = static_cast<int64_t>(random() % elements);
    const int64_t end = begin + static_cast<int64_t>(random() % std::min<int64_t>(elements - begin, 5000));
    ExpectRange(state, values, kParts[random() % 3], 0, begin, end);
  }
}

TEST_P(ValuesTest, WhatIsNotThereIsRefused) {
  Open(SmallSample());
  CheckpointValues values(*reader_);
  std::vector<float> out(10);
  const auto read = [&](absl::string_view name, int64_t begin) {
    return values.Read(name, begin, absl::MakeSpan(out));
  };
  EXPECT_EQ(read("nothing", 0).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(read("nothing", 0).message()), HasSubstr("has no parameter nothing"));
  for (int64_t begin : {int64_t{-1}, int64_t{1994}, int64_t{2003}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(read("head", begin).code(), absl::StatusCode::kOutOfRange) << begin;
  }
  EXPECT_TRUE(read("head", 1993).ok());
  EXPECT_EQ(read("scale", 0).code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(values.Read("head", 2003, {}).ok());
}

TEST_P(ValuesTest, ADamagedChunkIsNotHandedOut) {
  SampleState state = LargeSample();
  Open(state);
  // Damages a byte of the last rank's first piece.
  const ShardPiece piece = reader_->shards().back().pieces[0];
  const int64_t byte = piece.offset_bytes + 5;
  const std::string path = ShardPath(temp_.Path("c"), GetParam().ranks - 1, GetParam().ranks);
  FlipBit(path, 8 * byte);
  CheckpointValues values(*reader_);
  std::vector<float> out(1);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = values.Read(StatePart(0), "a", piece.range.begin, absl::MakeSpan(out));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(path, " is damaged between bytes ", RoundDown(byte, kCheckpointChunkBytes))));
  }
  FlipBit(path, 8 * byte);
  ExpectRange(state, values, StatePart(0), 0, piece.range.begin, piece.range.begin + 1);
}

TEST(JoinMasterTest, HalvesGiveEveryMasterBack) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 1'000'000; ++i) {
    // Runs through all upper halves, with boundary values or random bits as the lower half.
    constexpr uint32_t kLow[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    const uint32_t low = i % 2 == 0 ? kLow[(i / 2) % 6] : static_cast<uint16_t>(random());
    const auto master = std::bit_cast<float>((static_cast<uint32_t>(i % 65536) << 16) | low);
    const BFloat16 weight = RoundMaster(master);
    const float joined = JoinMaster(weight, MasterLowBits(master, weight));
    if (std::isnan(master)) {
      ASSERT_TRUE(std::isnan(joined));
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(joined), std::bit_cast<uint32_t>(master));
    }
  }
}

}  // namespace
}  // namespace shale
