#include "engine/files/checkpoint/shard_header.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/files/checkpoint/framing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/integers.h"
#include "proto/checkpoint.pb.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

ShardHeader ValidHeader() {
  return {.rank = 2,
          .pieces = {{0, StatePart(0), {0, 5}},
                     {7, StatePart(1), {3, 4}},
                     {0, SavedPart::kHigh, {0, 5}, 2},
                     {0, SavedPart::kLow, {1'000'000'000'000, 1'000'000'000'001}, 2}}};
}

std::string HeaderRefusal(absl::string_view head, int64_t file_bytes) {
  const absl::Status status = ParseShardHeader(head, file_bytes, AdamWStates()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_LT(status.message().size(), 400);
  return std::string(status.message());
}

// Returns the refusal of a head that `lie` changed. Its checksum is right. With `file_bytes` 0 the file has the size
// that fits the unchanged head.
std::string RefusalOfHeader(const std::function<void(proto::ShardHeader&)>& lie, int64_t file_bytes = 0) {
  ShardHeader header = ValidHeader();
  proto::ShardHeader message;
  const std::string head = SerializeShardHeader(header);
  EXPECT_TRUE(message.ParseFromString(std::string(Unframe("SHALESHD", 1, head, 1 << 20).value())));
  lie(message);
  std::string bytes = Frame("SHALESHD", 1, message.SerializeAsString());
  bytes.resize(kShardAlignment);
  return HeaderRefusal(bytes, file_bytes > 0 ? file_bytes : header.size_bytes);
}

TEST(ShardHeaderTest, WhatIsWrittenIsRead) {
  ShardHeader header = ValidHeader();
  const std::string head = SerializeShardHeader(header);
  EXPECT_EQ(head.size(), kShardAlignment);
  EXPECT_EQ(header.pieces[0].offset_bytes, kShardAlignment);
  EXPECT_EQ(header.pieces[3].offset_bytes, kShardAlignment + 20 + 4 + 10);
  EXPECT_EQ(header.size_bytes, kShardAlignment + 20 + 4 + 10 + 2);
  EXPECT_EQ(ShardHeadBytes(head).value(), kShardAlignment);
  EXPECT_EQ(ParseShardHeader(head, header.size_bytes, AdamWStates()).value(), header);
  // The rest of the file may follow.
  EXPECT_EQ(ParseShardHeader(head + "more", header.size_bytes, AdamWStates()).value(), header);
}

TEST(ShardHeaderTest, ARankThatOwnsNothingHasAHeadOnly) {
  ShardHeader header{.rank = 1};
  const std::string head = SerializeShardHeader(header);
  EXPECT_EQ(header.size_bytes, kShardAlignment);
  EXPECT_EQ(ParseShardHeader(head, kShardAlignment, AdamWStates()).value(), header);
}

TEST(ShardHeaderTest, AHeadMayBeLonger) {
  ShardHeader header;
  for (int i = 0; i < 3000; ++i) header.pieces.push_back({i, SavedPart::kValue, {i, 2 * i + 1}});
  const std::string head = SerializeShardHeader(header);
  EXPECT_GT(head.size(), 2 * kShardAlignment);
  EXPECT_EQ(head.size() % kShardAlignment, 0);
  EXPECT_EQ(ShardHeadBytes(absl::string_view(head).substr(0, kFrameHeadBytes)).value(), head.size());
  EXPECT_EQ(ParseShardHeader(head, header.size_bytes, AdamWStates()).value(), header);
}

TEST(ShardHeaderTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  ShardHeader header = ValidHeader();
  std::string head = SerializeShardHeader(header);
  for (size_t bit = 0; bit < 8 * head.size(); ++bit) {
    head[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_FALSE(HeaderRefusal(head, header.size_bytes).empty());
    head[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
  for (size_t size = 0; size < head.size(); ++size)
    HeaderRefusal(absl::string_view(head).substr(0, size), header.size_bytes);
}

TEST(ShardHeaderTest, AnotherVersionIsToldFromDamage) {
  std::string head = Frame("SHALESHD", 3, "whatever");
  head.resize(kShardAlignment);
  const absl::Status status = ParseShardHeader(head, kShardAlignment, AdamWStates()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("version 3"), HasSubstr("version 1")));
}

TEST(ShardHeaderTest, AFileOfAnotherSizeIsRefused) {
  ShardHeader header = ValidHeader();
  const std::string head = SerializeShardHeader(header);
  for (int64_t size : {int64_t{0}, kShardAlignment - 1, kShardAlignment, header.size_bytes - 1}) {
    EXPECT_THAT(HeaderRefusal(head, size), HasSubstr("which is misaligned or does not fit a file of")) << size;
  }
  for (int64_t size : {header.size_bytes + 1, kLargest}) {
    EXPECT_THAT(HeaderRefusal(head, size), HasSubstr("accounts for")) << size;
  }
}

TEST(ShardHeaderTest, PiecesThatCannotBeAreRefused) {
  using M = proto::ShardHeader;
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_part(0); }), HasSubstr("part 0, which is unknown"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_part(6); }), HasSubstr("part 6, which is unknown"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_part(-1); }), HasSubstr("part -1, which is unknown"));
  // 258 is 256 + kHigh, which a narrowing cast would accept.
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(2)->set_part(258); }),
              HasSubstr("part 258, which is unknown"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(1)->set_parameter(-1); }), HasSubstr("of parameter -1"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_begin(-1); }), HasSubstr("elements -1 to 5"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_begin(5); }), HasSubstr("elements 5 to 5"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_begin(kLargest); }),
              HasSubstr("has a piece with elements"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_end(-kLargest - 1); }),
              HasSubstr("has a piece with elements"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_end(kLargest); }), HasSubstr("which is misaligned"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_end(kLargest); }, kLargest),
              HasSubstr("which is misaligned"));
  EXPECT_THAT(RefusalOfHeader([](M& m) { m.mutable_pieces(0)->set_end(4); }), HasSubstr("accounts for"));
}

TEST(ShardHeaderTest, AWideElementBehindAnOddNumberOfNarrowOnesIsRefused) {
  EXPECT_THAT(RefusalOfHeader([](proto::ShardHeader& m) {
                m.mutable_pieces(1)->set_part(static_cast<int>(SavedPart::kLow));
                m.mutable_pieces(2)->set_part(static_cast<int>(SavedPart::kValue));
              }),
              HasSubstr("which is misaligned"));
}

TEST(ShardHeaderTest, WhatANewerProgramAddedIsRefusedAtAnyDepth) {
  const auto add = [](google::protobuf::Message* message) {
    message->GetReflection()->MutableUnknownFields(message)->AddVarint(1000, 1);
  };
  EXPECT_THAT(RefusalOfHeader([&](proto::ShardHeader& m) { add(&m); }), HasSubstr("written by a newer one"));
  EXPECT_THAT(RefusalOfHeader([&](proto::ShardHeader& m) { add(m.mutable_pieces(1)); }),
              HasSubstr("written by a newer one"));
}

// An empty piece takes two bytes in the file. Parsing 64 MiB of them once took gigabytes.
TEST(ShardHeaderTest, MorePiecesThanARankHasAreRefusedBeforeTheyAreBuilt) {
  std::string message;
  for (int i = 0; i <= kMaxShardPieces; ++i) message.append("\x12\x00", 2);
  std::string head = Frame("SHALESHD", 1, message);
  head.resize(RoundUp(std::ssize(head), kShardAlignment));
  EXPECT_THAT(HeaderRefusal(head, head.size()), HasSubstr("its header has more than 1572864 pieces"));
}

TEST(ShardHeaderTest, AsManyPiecesAsSixPartsOfAllParametersPass) {
  ShardHeader header;
  for (int i = 0; i < kMaxShardPieces; ++i) {
    const int64_t begin = int64_t{1} << 40;
    header.pieces.push_back({i / 6, SavedPart::kValue, {begin, begin + 1}});
  }
  const std::string head = SerializeShardHeader(header);
  EXPECT_LT(head.size(), size_t{42} << 20);
  EXPECT_TRUE(ParseShardHeader(head, header.size_bytes, AdamWStates()).ok());
}

TEST(ShardHeaderTest, WhatIsNoHeadIsRefused) {
  EXPECT_THAT(HeaderRefusal("", 0), HasSubstr("it has 0 bytes"));
  EXPECT_THAT(HeaderRefusal(Frame("SHALEMAN", 1, ""), kShardAlignment), HasSubstr("does not begin with \"SHALESHD\""));
  std::string malformed = Frame("SHALESHD", 1, "\xff");
  malformed.resize(kShardAlignment);
  EXPECT_THAT(HeaderRefusal(malformed, kShardAlignment), HasSubstr("malformed"));
  std::string claim = Frame("SHALESHD", 1, "");
  claim.replace(16, 8, std::string(8, '\xff'));
  EXPECT_FALSE(ShardHeadBytes(claim).ok());
  EXPECT_THAT(HeaderRefusal(claim, kLargest), HasSubstr("at most 67108864 are read"));
}

}  // namespace
}  // namespace shale
