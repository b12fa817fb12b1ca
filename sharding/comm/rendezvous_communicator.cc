#include "sharding/comm/rendezvous_communicator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "sharding/comm/collective_check.h"

namespace shale {
namespace {

// The parts of an all-reduce begin at multiples of this size, so that two ranks never write the same cache line.
constexpr int64_t kLineBytes = 128;

}  // namespace

RendezvousCommunicator::RendezvousCommunicator(std::shared_ptr<Rendezvous> rendezvous, int rank)
    : rendezvous_(std::move(rendezvous)), rank_(rank), inputs_(rendezvous_->size()) {}

RendezvousCommunicator::~RendezvousCommunicator() {
  rendezvous_->Abort(absl::AbortedError(absl::StrCat("rank ", rank_, " left")));
}

void RendezvousCommunicator::Abort(absl::Status reason) { rendezvous_->Abort(AbortedBy(rank_, std::move(reason))); }

absl::Status RendezvousCommunicator::EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckAllGather(shard, full, rank_, size()));
  return Enqueue(Rendezvous::Call::Of(CollectiveKind::kAllGather, full, shard, full, place_), stream);
}

absl::Status RendezvousCommunicator::EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckReduceScatterSum(full, shard, rank_, size()));
  return Enqueue(Rendezvous::Call::Of(CollectiveKind::kReduceScatterSum, full, full, shard, place_), stream);
}

absl::Status RendezvousCommunicator::EnqueueAllReduceSum(const Tensor& data, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckAllReduceSum(data));
  return Enqueue(Rendezvous::Call::Of(CollectiveKind::kAllReduceSum, data, data, data, place_), stream);
}

absl::Status RendezvousCommunicator::EnqueueAllToAll(const RankPieces& sent, const RankPieces& received,
                                                     Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckAllToAll(sent, received, rank_, size()));
  return Enqueue(Rendezvous::Call::OfAllToAll(sent, received, place_), stream);
}

absl::Status RendezvousCommunicator::Work(Stream& stream) {
  switch (mine().kind) {
    case CollectiveKind::kAllGather: return AllGather(stream);
    case CollectiveKind::kReduceScatterSum: return ReduceScatter(stream);
    case CollectiveKind::kAllReduceSum: return AllReduce(stream);
    case CollectiveKind::kAllToAll: return AllToAll(stream);
  }
  return absl::OkStatus();
}

// Each rank copies its own shard first and then those of its successors, so that the ranks do not all read the same
// shard at once.
absl::Status RendezvousCommunicator::AllGather(Stream& stream) {
  const int64_t shard_bytes = mine().elements / size() * SizeOf(mine().dtype);
  for (int i = 0; i < size() && shard_bytes > 0; ++i) {
    const int peer = (rank_ + i) % size();
    const std::byte* from = call(peer).input;
    std::byte* to = mine().output + peer * shard_bytes;
    if (from != to) SHALE_RETURN_IF_ERROR(Copy(to, from, shard_bytes, stream));
  }
  return absl::OkStatus();
}

absl::Status RendezvousCommunicator::ReduceScatter(Stream& stream) {
  const int64_t part = mine().elements / size();
  return SumPart(rank_ * part, part, mine().output, stream);
}

// Each rank sums its part of the vector, then copies the parts of all other ranks.
absl::Status RendezvousCommunicator::AllReduce(Stream& stream) {
  const int64_t element_bytes = SizeOf(mine().dtype);
  const int64_t line = kLineBytes / element_bytes;
  const int64_t part = CeilDivide(mine().elements, size() * line) * line;
  const auto begin = [&](int rank) { return std::min(mine().elements, rank * part); };
  absl::Status status =
      SumPart(begin(rank_), begin(rank_ + 1) - begin(rank_), mine().output + begin(rank_) * element_bytes, stream);
  status.Update(Barrier(stream));
  SHALE_RETURN_IF_ERROR(status);
  for (int i = 1; i < size(); ++i) {
    const int peer = (rank_ + i) % size();
    const int64_t offset = begin(peer) * element_bytes, bytes = (begin(peer + 1) - begin(peer)) * element_bytes;
    if (bytes > 0) SHALE_RETURN_IF_ERROR(Copy(mine().output + offset, call(peer).output + offset, bytes, stream));
  }
  return absl::OkStatus();
}

// Each rank copies what the others send it.
absl::Status RendezvousCommunicator::AllToAll(Stream& stream) {
  const int64_t element_bytes = SizeOf(mine().dtype);
  for (int i = 0; i < size(); ++i) {
    const int peer = (rank_ + i) % size();
    const auto [begin, end] = mine().exchange->received[peer];
    if (begin == end) continue;
    const std::byte* from = call(peer).input + call(peer).exchange->sent[rank_].begin * element_bytes;
    SHALE_RETURN_IF_ERROR(Copy(mine().output + begin * element_bytes, from, (end - begin) * element_bytes, stream));
  }
  return absl::OkStatus();
}

// Computes out = sum over ranks, in rank order, of elements [begin, begin + count) of their inputs.
absl::Status RendezvousCommunicator::SumPart(int64_t begin, int64_t count, std::byte* out, Stream& stream) {
  if (count == 0) return absl::OkStatus();
  for (int rank = 0; rank < size(); ++rank) inputs_[rank] = call(rank).input + begin * SizeOf(mine().dtype);
  return Sum(mine().dtype, inputs_, out, count, stream);
}

}  // namespace shale
