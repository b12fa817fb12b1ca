// Tests AllToAll: pieces of any sizes and places.
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/element_range.h"
#include "tests/sharding/comm/communicator_conformance.h"

namespace shale {
namespace {

// Sizes of pieces, none, single elements, and around those of messages, in an order that is not sorted.
constexpr int64_t kPieces[] = {1, 0, 17, 4099, 0, 3, 1000, 16};
constexpr int kPieceSizes = 8;

// Returns how many elements rank `from` sends to rank `to`, of pieces that are `times` as long as those above.
int64_t PieceSize(int from, int to, int round, int64_t times) {
  return times * kPieces[(3 * from + 5 * to + round) % kPieceSizes];
}

template <class T>
T Element(int from, int to, int64_t i) {
  return static_cast<T>(from * 4000 + to * 400 + i % 399);
}

// Places the pieces of a rank from the last to the first, with `gap` elements before each. Returns the size of all.
template <class SizeOfPiece>
int64_t PlaceBackwards(int ranks, int64_t gap, const SizeOfPiece& size_of, std::vector<ElementRange>* pieces) {
  pieces->resize(ranks);
  int64_t at = 0;
  for (int rank = ranks - 1; rank >= 0; --rank) {
    at += gap;
    (*pieces)[rank] = {at, at + size_of(rank)};
    at += size_of(rank);
  }
  return at;
}

template <class T>
void CheckAllToAllOf(Communicator& communicator, Device& device, Stream& stream, int64_t times) {
  const int rank = communicator.rank(), ranks = communicator.size();
  for (int round = 0; round < 3; ++round) {
    std::vector<ElementRange> sent, received;
    const int64_t out = PlaceBackwards(
        ranks, 2, [&](int to) { return PieceSize(rank, to, round, times); }, &sent);
    const int64_t in = PlaceBackwards(
        ranks, 1, [&](int from) { return PieceSize(from, rank, round, times); }, &received);
    std::vector<T> values(out), expected(in, T(7));
    for (int peer = 0; peer < ranks; ++peer) {
      for (int64_t i = sent[peer].begin; i < sent[peer].end; ++i) {
        values[i] = Element<T>(rank, peer, i - sent[peer].begin);
      }
      for (int64_t i = received[peer].begin; i < received[peer].end; ++i) {
        expected[i] = Element<T>(peer, rank, i - received[peer].begin);
      }
    }
    const DeviceVector<T> from(device, values, stream), to(device, std::vector<T>(in, T(7)), stream);
    ASSERT_TRUE(communicator.AllToAll({from.View(), sent}, {to.View(), received}, stream).ok());
    ASSERT_EQ(to.Read(stream), expected) << "round " << round;
  }
}

TEST_P(CommunicatorConformance, AllToAllGivesEachRankWhatTheOthersSendIt) {
  for (int size : {1, 2, 3, 5, 8}) {
    Group group = CreateGroup(size);
    ForEachRank(size, [&](int rank) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " of ", size));
      std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
      CheckAllToAll(*group[rank], *device_, *stream);
    });
  }
}

// Only rank 0 has something to send, and only to the last rank. The others take part all the same.
TEST_P(CommunicatorConformance, AllToAllOfOnePieceIsACollectiveOfAllRanks) {
  constexpr int kRanks = 3;
  constexpr int64_t n = 5000;
  Group group = CreateGroup(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
    const DeviceVector<float> from(*device_, std::vector<float>(rank == 0 ? n : 0, 3), *stream);
    const DeviceVector<float> to(*device_, rank == kRanks - 1 ? n : 0);
    std::vector<ElementRange> sent(kRanks), received(kRanks);
    if (rank == 0) sent[kRanks - 1] = {0, n};
    if (rank == kRanks - 1) received[0] = {0, n};
    ASSERT_TRUE(group[rank]->AllToAll({from.View(), sent}, {to.View(), received}, *stream).ok());
    ASSERT_EQ(FirstDifference(to.Read(*stream), std::vector<float>(rank == kRanks - 1 ? n : 0, 3)), -1);
  });
}

// All work is enqueued without waiting in between: what a rank sends is overwritten as soon as the stream has passed.
TEST_P(CommunicatorConformance, AFinishedAllToAllNeedsItsInputsNoMore) {
  constexpr int kRanks = 3, kRounds = 50;
  constexpr int64_t n = 2000;
  Group group = CreateGroup(kRanks);
  ForEachRank(kRanks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
    std::vector<int64_t> values(n * kRanks * kRounds);
    for (int64_t i = 0; i < std::ssize(values); ++i)
      values[i] = 1000 * (i / (n * kRanks)) + 10 * (i / n % kRanks) + rank;
    const DeviceVector<int64_t> rounds(*device_, values, *stream), from(*device_, n * kRanks);
    const DeviceVector<int64_t> results(*device_, n * kRanks * kRounds);
    std::vector<ElementRange> rows;
    for (int64_t r = 0; r < kRanks; ++r) rows.push_back({r * n, (r + 1) * n});
    for (int round = 0; round < kRounds; ++round) {
      ASSERT_TRUE(stream->Copy(from.data(), rounds.data() + round * n * kRanks, n * kRanks * 8).ok());
      const Tensor result = results.View(round * n * kRanks, n * kRanks);
      ASSERT_TRUE(group[rank]->AllToAll({from.View(), rows}, {result, rows}, *stream).ok());
    }
    std::vector<int64_t> expected(n * kRanks * kRounds);
    for (int64_t i = 0; i < std::ssize(expected); ++i) {
      expected[i] = 1000 * (i / (n * kRanks)) + 10 * rank + i / n % kRanks;
    }
    ASSERT_EQ(FirstDifference(results.Read(*stream), expected), -1);
  });
}

TEST_P(CommunicatorConformance, PiecesThatDoNotFitAreRefusedAndNothingIsEnqueued) {
  Group group = CreateGroup(2);
  if (group[0] == nullptr) return;
  std::unique_ptr<Stream> stream = *device_->CreateStream("reduce");
  const DeviceVector<float> from(*device_, 20), to(*device_, 20);
  const DeviceVector<int32_t> integers(*device_, 20);
  const std::vector<ElementRange> good = {{0, 10}, {10, 20}}, one = {{0, 10}}, outside = {{0, 10}, {10, 21}},
                                  backwards = {{0, 10}, {12, 11}}, overlapping = {{0, 10}, {9, 12}},
                                  uneven = {{0, 9}, {10, 20}};
  const auto refused = [&](const Tensor& a, const std::vector<ElementRange>& sent, const Tensor& b,
                           const std::vector<ElementRange>& received, absl::string_view because) {
    const absl::Status status = group[0]->AllToAll({a, sent}, {b, received}, *stream);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(because), absl::string_view::npos) << status;
  };
  refused(from.View(), one, to.View(), good, "sent has 1 pieces, and the group 2 ranks");
  refused(from.View(), outside, to.View(), good, "has no elements [10, 21), the piece of rank 1");
  refused(from.View(), backwards, to.View(), good, "has no elements [12, 11)");
  refused(from.View(), good, to.View(), overlapping, "received pieces overlap");
  refused(from.View(), uneven, to.View(), good, "rank 0 sends itself 9 elements and receives 10");
  refused(from.View(), good, integers.View(), good, "differ in type");
  refused(from.View(), good, from.View(), good, "sent and received overlap");
  refused(Tensor(), good, to.View(), good, "sent is absent");
  refused(from.View(), good, Tensor::Contiguous(DType::kFloat32, {20}), good, "not bound");
  EXPECT_TRUE(stream->Synchronize().ok());
}

}  // namespace

void CheckAllToAll(Communicator& communicator, Device& device, Stream& stream, int64_t times) {
  ASSERT_NO_FATAL_FAILURE(CheckAllToAllOf<int16_t>(communicator, device, stream, times));
  ASSERT_NO_FATAL_FAILURE(CheckAllToAllOf<float>(communicator, device, stream, times));
  ASSERT_NO_FATAL_FAILURE(CheckAllToAllOf<int64_t>(communicator, device, stream, times));
}

void ExpectDifferentPiecesAreRefused(Group& group, Device& device) {
  const int ranks = static_cast<int>(group.size());
  ForEachRank(ranks, [&](int rank) {
    std::unique_ptr<Stream> stream = *device.CreateStream("reduce");
    const DeviceVector<float> from(device, 20 * ranks), to(device, 20 * ranks);
    std::vector<ElementRange> rows;
    for (int64_t r = 0; r < ranks; ++r) rows.push_back({20 * r, 20 * (r + 1)});
    std::vector<ElementRange> fewer = rows;
    if (rank == 0) --fewer[ranks - 1].end;  // The last rank wants all of it.
    const absl::Status enqueued = group[rank]->AllToAll({from.View(), fewer}, {to.View(), rows}, *stream);
    const absl::Status ran = stream->Synchronize();
    const absl::Status status = enqueued.ok() ? ran : enqueued;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << rank;
    const std::string wanted = absl::StrCat("rank 0 sends 19 elements to rank ", ranks - 1, ", which wants 20");
    EXPECT_NE(status.message().find(wanted), absl::string_view::npos) << status;
  });
}

}  // namespace shale
