#include "sharding/shard_layout.h"

#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns sizes around the alignment, a scalar, and a matrix that straddles shards.
const std::vector<ShardLayout::Entry>& AwkwardEntries() {
  static const auto& entries = *new std::vector<ShardLayout::Entry>{
      {"embedding", {131, 17}}, {"scalar", {}},         {"exact", {128}}, {"one_more", {129}}, {"bias", {3}},
      {"cube", {5, 7, 11}},     {"touching", {2, 128}}, {"norm", {127}}};
  return entries;
}

std::vector<ShardLayout::Entry> RandomEntries(std::mt19937& random) {
  std::vector<ShardLayout::Entry> entries;
  const int count = random() % 12;
  for (int i = 0; i < count; ++i) {
    ShardLayout::Entry entry{.name = absl::StrCat("p", i)};
    for (int d = random() % 4; d > 0; --d) entry.shape.push_back(1 + random() % 40);
    entries.push_back(std::move(entry));
  }
  return entries;
}

ShardLayout Make(const std::vector<ShardLayout::Entry>& entries, int shards) {
  absl::StatusOr<ShardLayout> layout = ShardLayout::Create(entries, shards);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

std::string ErrorOf(const std::vector<ShardLayout::Entry>& entries, int shards = 1) {
  absl::StatusOr<ShardLayout> layout = ShardLayout::Create(entries, shards);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(layout.status().message());
}

// Checks every law that holds for any layout.
void CheckLaws(const std::vector<ShardLayout::Entry>& entries, int shards) {
  SCOPED_TRACE(absl::StrCat(entries.size(), " parameters, ", shards, " shards"));
  const ShardLayout layout = Make(entries, shards);
  ASSERT_EQ(layout.shards(), shards);
  ASSERT_EQ(layout.shard_elements() % ShardLayout::kAlignment, 0);
  ASSERT_EQ(layout.padded_elements(), layout.shard_elements() * shards);
  ASSERT_GE(layout.padded_elements(), layout.total_elements());
  // The shards could not be one block shorter.
  ASSERT_TRUE(layout.total_elements() > (layout.shard_elements() - ShardLayout::kAlignment) * shards);

  // Counts the parameters and gaps that hold each element: there must be exactly one.
  std::vector<int> owner(layout.padded_elements(), 0);
  for (const ElementRange& gap : layout.gaps()) {
    ASSERT_LT(gap.begin, gap.end);
    for (int64_t i = gap.begin; i < gap.end; ++i) owner[i] += 1;
  }
  for (const ShardLayout::PlacedParameter& p : layout.parameters()) {
    ASSERT_EQ(p.offset_elements % ShardLayout::kAlignment, 0);
    for (int64_t i = p.offset_elements; i < p.range().end; ++i) owner[i] += 1;
  }
  for (int64_t i = 0; i < std::ssize(owner); ++i) ASSERT_EQ(owner[i], 1) << "element " << i;

  // Shards tile the vector. Pieces tile every parameter, with each element once, at the place that its shard says.
  std::vector<std::vector<int>> seen(entries.size());
  for (size_t p = 0; p < entries.size(); ++p) seen[p].resize(layout.parameters()[p].elements, 0);
  int64_t next_begin = 0;
  for (int rank = 0; rank < shards; ++rank) {
    const ElementRange shard = layout.ShardRange(rank);
    ASSERT_EQ(shard.begin, next_begin);
    ASSERT_EQ(shard.end - shard.begin, layout.shard_elements());
    next_begin = shard.end;
    int64_t after = 0;
    for (const ShardLayout::Piece& piece : layout.ParameterPieces(rank)) {
      ASSERT_LT(piece.range.begin, piece.range.end);
      ASSERT_GE(piece.shard_offset, after);
      after = piece.shard_offset + piece.range.end - piece.range.begin;
      ASSERT_LE(after, layout.shard_elements());
      const ShardLayout::PlacedParameter& p = layout.parameters()[piece.parameter];
      ASSERT_EQ(p.offset_elements + piece.range.begin, shard.begin + piece.shard_offset);
      for (int64_t i = piece.range.begin; i < piece.range.end; ++i) seen[piece.parameter][i] += 1;
    }
  }
  ASSERT_EQ(next_begin, layout.padded_elements());
  for (const std::vector<int>& parameter : seen) {
    for (int times : parameter) ASSERT_EQ(times, 1);
  }
}

TEST(ShardLayoutTest, EveryElementHasOneOwnerForEveryNumberOfRanks) {
  for (int shards = 1; shards <= 8; ++shards) CheckLaws(AwkwardEntries(), shards);
  CheckLaws(AwkwardEntries(), 61);
}

TEST(ShardLayoutTest, EveryElementHasOneOwnerInRandomGroups) {
  std::mt19937 random(1);
  for (int i = 0; i < 60; ++i) CheckLaws(RandomEntries(random), 1 + random() % 9);
}

TEST(ShardLayoutTest, OffsetsDoNotDependOnTheNumberOfRanks) {
  const ShardLayout one = Make(AwkwardEntries(), 1);
  for (int shards : {2, 3, 4, 5, 6, 7, 8, 1000, 16384}) {
    const ShardLayout layout = Make(AwkwardEntries(), shards);
    EXPECT_EQ(layout.total_elements(), one.total_elements());
    for (size_t i = 0; i < AwkwardEntries().size(); ++i) {
      EXPECT_EQ(layout.parameters()[i].offset_elements, one.parameters()[i].offset_elements);
    }
  }
}

TEST(ShardLayoutTest, PlacesParametersInOrderAtMultiplesOf256BytesOfBFloat16) {
  const ShardLayout layout = Make({{"embed", {20, 10}}, {"norm", {90}}}, 3);
  ASSERT_NE(layout.Find("norm"), nullptr);
  EXPECT_EQ(layout.Find("norm")->offset_elements, 256);
  EXPECT_EQ(layout.Find("norm")->elements, 90);
  EXPECT_EQ(layout.Find("embed")->offset_elements, 0);
  EXPECT_THAT(layout.Find("embed")->shape, ElementsAre(20, 10));
  EXPECT_EQ(layout.Find("nor"), nullptr);
  EXPECT_EQ(layout.total_elements(), 346);
  EXPECT_EQ(layout.shard_elements(), 128);
  EXPECT_THAT(layout.gaps(), ElementsAre(ElementRange{200, 256}, ElementRange{346, 384}));
  EXPECT_THAT(layout.ParameterPieces(0), ElementsAre(ShardLayout::Piece{0, {0, 128}, 0}));
  EXPECT_THAT(layout.ParameterPieces(1), ElementsAre(ShardLayout::Piece{0, {128, 200}, 0}));
  EXPECT_THAT(layout.ParameterPieces(2), ElementsAre(ShardLayout::Piece{1, {0, 90}, 0}));
}

// The pieces of a shard are divided where parts begin, and nowhere else. If there are more parts than blocks, the last
// parts are empty.
TEST(ShardLayoutTest, PartsOfAShardHaveItsElementsInOrder) {
  for (const int64_t block : {1, 256}) {
    for (const int parts : {1, 2, 3, 5, 64}) {
      const ShardLayout layout = ShardLayout::Create(AwkwardEntries(), 2, block).value();
      for (int shard = 0; shard < 2; ++shard) {
        std::vector<ShardLayout::Piece> joined;
        for (int part = 0; part < parts; ++part) {
          for (const ShardLayout::Piece& piece : layout.ParameterPieces(shard, part, parts)) {
            ASSERT_LT(piece.range.begin, piece.range.end);
            if (joined.empty() || joined.back().parameter != piece.parameter) {
              joined.push_back(piece);
              continue;
            }
            ASSERT_EQ(joined.back().range.end, piece.range.begin);
            ASSERT_EQ(piece.range.begin % block, 0);
            joined.back().range.end = piece.range.end;
          }
        }
        EXPECT_EQ(joined, layout.ParameterPieces(shard)) << parts << " parts of shard " << shard;
      }
    }
  }
}

TEST(ShardLayoutTest, AShardMayHoldNoParameter) {
  const ShardLayout layout = Make({{"small", {10}}}, 8);
  EXPECT_EQ(layout.shard_elements(), 128);
  EXPECT_EQ(layout.ParameterPieces(0).size(), 1);
  for (int rank = 1; rank < 8; ++rank) EXPECT_THAT(layout.ParameterPieces(rank), IsEmpty());
}

TEST(ShardLayoutTest, AGroupMayHoldNoParameter) {
  const ShardLayout layout = Make({}, 4);
  EXPECT_EQ(layout.padded_elements(), 0);
  EXPECT_THAT(layout.gaps(), IsEmpty());
  EXPECT_THAT(layout.ParameterPieces(3), IsEmpty());
}

TEST(ShardLayoutTest, RangesMergeWhatTouchesAndNothingElse) {
  const ShardLayout layout = Make({{"a", {128}}, {"b", {256}}, {"c", {5}}, {"d", {128}}, {"e", {1}}}, 2);
  const auto all = [](const ShardLayout::PlacedParameter&) { return true; };
  EXPECT_THAT(layout.Ranges(all), ElementsAre(ElementRange{0, 389}, ElementRange{512, 641}));
  const auto not_b = [](const ShardLayout::PlacedParameter& p) { return p.name != "b"; };
  EXPECT_THAT(layout.Ranges(not_b), ElementsAre(ElementRange{0, 128}, ElementRange{384, 389}, ElementRange{512, 641}));
  EXPECT_THAT(layout.Ranges([](const ShardLayout::PlacedParameter&) { return false; }), IsEmpty());
}

TEST(ShardLayoutTest, RefusesWhatCannotBeLaidOut) {
  EXPECT_THAT(ErrorOf({{"a", {4}}}, 0), HasSubstr("a layout for 0 shards"));
  EXPECT_THAT(ErrorOf({{"a", {4}}}, -3), HasSubstr("-3"));
  EXPECT_THAT(ErrorOf({{"a", {4}}, {"", {4}}}), HasSubstr("parameter 1 of a group has no name"));
  EXPECT_THAT(ErrorOf({{"a", {4}}, {"b", {4}}, {"a", {4}}}), HasSubstr("parameter a occurs twice"));
  EXPECT_THAT(ErrorOf({{"a", {4, 0}}}), HasSubstr("parameter a has shape [4, 0]"));
  EXPECT_THAT(ErrorOf({{"a", {-1}}}), HasSubstr("at least 1"));
}

TEST(ShardLayoutTest, RefusesSizesThatOverflow) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(ErrorOf({{"a", {kHuge}}}), HasSubstr("parameter a of shape"));
  EXPECT_THAT(ErrorOf({{"a", {int64_t{1} << 32, int64_t{1} << 32}}}), HasSubstr("parameter a of shape"));
  EXPECT_THAT(ErrorOf({{"a", {kHuge / 8}}}), HasSubstr("the group up to a"));
  EXPECT_THAT(ErrorOf({{"a", {kHuge / 16}}, {"b", {kHuge / 16}}}), HasSubstr("the group up to b"));
  // The parameter fits, but its padding does not.
  EXPECT_THAT(ErrorOf({{"a", {kHuge / 8 - 200}}}, std::numeric_limits<int>::max()), HasSubstr("padded for"));
  EXPECT_EQ(Make({{"a", {3}}}, std::numeric_limits<int>::max()).shard_elements(), 128);
}

// Optimizer states that come in blocks need parameters and shards that begin at whole blocks.
TEST(ShardLayoutTest, ParametersAndShardsBeginAtWholeBlocks) {
  for (int shards : {1, 2, 3, 5}) {
    const ShardLayout layout = ShardLayout::Create(AwkwardEntries(), shards, 256).value();
    EXPECT_EQ(layout.shard_elements() % 256, 0);
    EXPECT_LT(layout.padded_elements() - layout.total_elements(), 256 * shards);
    for (const ShardLayout::PlacedParameter& p : layout.parameters()) EXPECT_EQ(p.offset_elements % 256, 0) << p.name;
    for (int rank = 0; rank < shards; ++rank) {
      for (const ShardLayout::Piece& piece : layout.ParameterPieces(rank)) EXPECT_EQ(piece.range.begin % 256, 0);
    }
  }
  const ShardLayout narrow = ShardLayout::Create(AwkwardEntries(), 3, 64).value();
  EXPECT_EQ(narrow.parameters().back().offset_elements, Make(AwkwardEntries(), 3).parameters().back().offset_elements);
}

}  // namespace
}  // namespace shale
