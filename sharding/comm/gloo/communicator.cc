#include "sharding/comm/gloo/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "kernels/device/cpu/cpu_stream.h"
#include "kernels/integers.h"
#include "sharding/comm/collective_check.h"
#include "sharding/comm/sum_ranks.h"

namespace shale {
namespace {

// The parts of an all-reduce begin at multiples of this size, so that two ranks never write the same cache line.
constexpr int64_t kLineBytes = 128;

}  // namespace

GlooCommunicator::GlooCommunicator(std::shared_ptr<GlooGroup> group, std::shared_ptr<GlooHello> hello, int rank,
                                   int64_t chunk_bytes)
    : group_(std::move(group)),
      hello_(std::move(hello)),
      rank_(rank),
      place_(layout().place_of(rank)),
      chunk_bytes_(chunk_bytes),
      staging_(2 * layout().remote_ranks().size() * chunk_bytes) {}

GlooCommunicator::~GlooCommunicator() { group_->Leave(rank_, number_); }

void GlooCommunicator::Abort(absl::Status reason) { group_->Fail(AbortedBy(rank_, std::move(reason))); }

absl::Status GlooCommunicator::EnqueueAllGather(const Tensor& shard, const Tensor& full, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckAllGather(shard, full, rank_, size()));
  return Enqueue(Rendezvous::Call::Of(CollectiveKind::kAllGather, full, shard, full, next_), stream);
}

absl::Status GlooCommunicator::EnqueueReduceScatterSum(const Tensor& full, const Tensor& shard, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckReduceScatterSum(full, shard, rank_, size()));
  return Enqueue(Rendezvous::Call::Of(CollectiveKind::kReduceScatterSum, full, full, shard, next_), stream);
}

absl::Status GlooCommunicator::EnqueueAllReduceSum(const Tensor& data, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckAllReduceSum(data));
  return Enqueue(Rendezvous::Call::Of(CollectiveKind::kAllReduceSum, data, data, data, next_), stream);
}

absl::Status GlooCommunicator::EnqueueAllToAll(const RankPieces& sent, const RankPieces& received, Stream& stream) {
  SHALE_RETURN_IF_ERROR(CheckAllToAll(sent, received, rank_, size()));
  return Enqueue(Rendezvous::Call::OfAllToAll(sent, received, next_), stream);
}

absl::Status GlooCommunicator::Enqueue(const Rendezvous::Call& call, Stream& stream) {
  SHALE_ASSIGN_OR_RETURN(CpuStream * cpu_stream, CpuStream::From(stream));
  return cpu_stream->Enqueue([this, call] { return Run(call); });
}

absl::Status GlooCommunicator::Run(const Rendezvous::Call& call) {
  const NoBrokenPipes no_broken_pipes;
  SHALE_RETURN_IF_ERROR(group_->status());
  if (absl::Status met = group_->rendezvous().Meet(place_, call); !met.ok()) {
    group_->Fail(std::move(met));
    return group_->status();
  }
  ++number_;
  const int64_t of_process = layout().most_ranks() * InputBytes();
  const bool in_memory =
      group_->memory().readable() && layout().most_ranks() * sizeof(Operands) <= GlooHello::kMostBytes;
  // The hello has room for operands whose sizes all processes know.
  const bool small = of_process <= GlooHello::kMostBytes && call.kind != CollectiveKind::kAllToAll;
  absl::Status status = small ? RunSmall() : in_memory ? RunInMemory() : RunLarge();
  group_->rendezvous().Sync();
  if (leads()) group_->End();
  return status;
}

// Returns the size of this rank's operand, which is the same on all ranks. Not for AllToAll.
int64_t GlooCommunicator::InputBytes() const {
  const int64_t elements = mine().kind == CollectiveKind::kAllGather ? mine().elements / size() : mine().elements;
  return elements * element_bytes();
}

// Every process gets the operands of all ranks.
absl::Status GlooCommunicator::RunSmall() {
  const int64_t input_bytes = InputBytes();
  absl::Status status;
  if (leads()) {
    status = group_->Begin(number_, mine().wish());
    const int64_t local = std::ssize(layout().local_ranks());
    for (int64_t place = 0; place < local && input_bytes > 0; ++place) {
      std::memcpy(hello_->mine() + place * input_bytes, group_->rendezvous().call(place).input, input_bytes);
    }
    if (status.ok()) status = hello_->Send(number_, mine().wish(), local * input_bytes);
    if (status.ok()) status = hello_->Await();
  }
  // An all-reduce overwrites its operands, so all local ranks use their copies beside those of other processes.
  group_->rendezvous().Sync();
  if (!leads()) status = group_->status();
  if (!status.ok() || input_bytes == 0) return status;
  if (mine().kind == CollectiveKind::kAllGather) {
    for (int rank = 0; rank < size(); ++rank) {
      std::memcpy(mine().output + rank * input_bytes, SmallInput(rank), input_bytes);
    }
    return status;
  }
  const Part part = mine().kind == CollectiveKind::kAllReduceSum ? Part{0, mine().elements} : PartOf(rank_);
  std::vector<const std::byte*> inputs;
  for (int rank = 0; rank < size(); ++rank) inputs.push_back(SmallInput(rank) + part.begin * element_bytes());
  SumRanks(mine().dtype, inputs, mine().output, part.count);
  return status;
}

const std::byte* GlooCommunicator::SmallInput(int rank) const {
  const std::byte* of_process = layout().is_local(rank) ? hello_->mine() : hello_->data(layout().process_of(rank));
  return of_process + layout().place_of(rank) * InputBytes();
}

// The data moves while the processes still compare what they want.
absl::Status GlooCommunicator::RunLarge() {
  absl::Status status;
  if (leads()) {
    status = group_->Begin(number_, mine().wish());
    if (status.ok()) status = hello_->Send(number_, mine().wish(), 0);
  }
  if (mine().kind == CollectiveKind::kAllToAll) return status.ok() ? AllToAll() : status;
  if (status.ok()) status = mine().kind == CollectiveKind::kAllGather ? AllGather() : Sum();
  if (mine().kind == CollectiveKind::kReduceScatterSum) return status;
  // Each local rank copies what the others have received or computed.
  group_->rendezvous().Sync();
  if (status.ok()) status = group_->status();
  if (status.ok()) CopyFromLocalRanks();
  return status;
}

// Waits in the first local rank until all processes want the same. The other ranks get an error from the group.
absl::Status GlooCommunicator::Agree() { return leads() ? hello_->Await() : absl::OkStatus(); }

absl::Status GlooCommunicator::AllGather() {
  GlooTransfers transfers(*group_, rank_, number_, mine().wish());
  const int64_t shard_bytes = InputBytes();
  std::vector<std::pair<int, std::unique_ptr<GlooBuffer>>> receiving;
  for (const int from : layout().remote_ranks()) {
    if (ReceiverOf(from) != place_) continue;
    receiving.emplace_back(from, group_->links().Wrap(mine().output + from * shard_bytes, shard_bytes));
    SHALE_RETURN_IF_ERROR(transfers.ReceiveForAll(from, *receiving.back().second, 0, shard_bytes));
  }
  for (const int peer : layout().peers()) {
    SHALE_RETURN_IF_ERROR(transfers.SendToAll(peer, mine().input, shard_bytes, 0, shard_bytes));
  }
  std::byte* own = mine().output + rank_ * shard_bytes;
  if (own != mine().input) CopyBytes(own, mine().input, shard_bytes);
  SHALE_RETURN_IF_ERROR(Agree());
  for (const auto& [from, buffer] : receiving) SHALE_RETURN_IF_ERROR(transfers.AwaitReceived(from, *buffer));
  return transfers.AwaitSent();
}

// Returns the part of the full vector that a rank sums.
GlooCommunicator::Part GlooCommunicator::PartOf(int rank) const {
  if (mine().kind != CollectiveKind::kAllReduceSum) {
    const int64_t count = mine().elements / size();
    return {rank * count, count};
  }
  const int64_t line = kLineBytes / element_bytes();
  const int64_t most = CeilDivide(mine().elements, size() * line) * line;
  const int64_t begin = std::min(mine().elements, rank * most);
  return {begin, std::min(mine().elements, begin + most) - begin};
}

// Each rank sends every remote rank its part, sums its own part, and in an all-reduce sends the sum to all processes.
absl::Status GlooCommunicator::Sum() {
  GlooTransfers transfers(*group_, rank_, number_, mine().wish());
  const int64_t full_bytes = mine().elements * element_bytes(), chunk = chunk_bytes_ / element_bytes();
  const std::vector<int>& remote = layout().remote_ranks();
  std::vector<std::unique_ptr<GlooBuffer>> staged;
  for (size_t i = 0; i < 2 * remote.size(); ++i) {
    staged.push_back(group_->links().Wrap(staging_.data() + i * chunk_bytes_, chunk_bytes_));
  }
  // Sums of remote ranks arrive where this rank's operand was. Their ranks have received it by then.
  std::vector<std::pair<int, std::unique_ptr<GlooBuffer>>> sums;
  for (const int from : remote) {
    if (mine().kind != CollectiveKind::kAllReduceSum || ReceiverOf(from) != place_) continue;
    const Part part = PartOf(from);
    for (int64_t at = 0; at < part.count; at += chunk) {
      const int64_t bytes = std::min(chunk, part.count - at) * element_bytes();
      sums.emplace_back(from, group_->links().Wrap(mine().output + (part.begin + at) * element_bytes(), bytes));
      SHALE_RETURN_IF_ERROR(transfers.ReceiveForAll(from, *sums.back().second, 0, bytes));
    }
  }
  for (int64_t at = 0, more = 1; more > 0; at += chunk) {
    more = 0;
    for (const int to : remote) {
      const Part part = PartOf(to);
      if (at >= part.count) continue;
      const int64_t bytes = std::min(chunk, part.count - at) * element_bytes();
      SHALE_RETURN_IF_ERROR(transfers.Send(to, mine().input, full_bytes, (part.begin + at) * element_bytes(), bytes));
      ++more;
    }
  }
  SHALE_RETURN_IF_ERROR(SumPart(transfers, staged));
  for (const auto& [from, buffer] : sums) SHALE_RETURN_IF_ERROR(transfers.AwaitReceived(from, *buffer));
  return transfers.AwaitSent();
}

// `staged` has two buffers for each remote rank: one chunk is summed while the next arrives.
absl::Status GlooCommunicator::SumPart(GlooTransfers& transfers,
                                       const std::vector<std::unique_ptr<GlooBuffer>>& staged) {
  const bool all_reduce = mine().kind == CollectiveKind::kAllReduceSum;
  const std::vector<int>& remote = layout().remote_ranks();
  const Part part = PartOf(rank_);
  const int64_t chunk = chunk_bytes_ / element_bytes(), chunks = CeilDivide(part.count, chunk);
  const auto count = [&](int64_t i) { return std::min(chunk, part.count - i * chunk); };
  const auto receive = [&](int64_t i) -> absl::Status {
    for (size_t r = 0; r < remote.size() && i < chunks; ++r) {
      GlooBuffer& buffer = *staged[i % 2 * remote.size() + r];
      SHALE_RETURN_IF_ERROR(transfers.Receive(remote[r], buffer, 0, count(i) * element_bytes()));
    }
    return absl::OkStatus();
  };
  SHALE_RETURN_IF_ERROR(receive(0));
  SHALE_RETURN_IF_ERROR(receive(1));
  SHALE_RETURN_IF_ERROR(Agree());
  std::vector<const std::byte*> inputs(size());
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t offset = (part.begin + i * chunk) * element_bytes();
    for (const int rank : layout().local_ranks()) inputs[rank] = call_of(rank).input + offset;
    for (size_t r = 0; r < remote.size(); ++r) {
      GlooBuffer& buffer = *staged[i % 2 * remote.size() + r];
      SHALE_RETURN_IF_ERROR(transfers.AwaitReceived(remote[r], buffer));
      inputs[remote[r]] = static_cast<const std::byte*>(buffer.ptr);
    }
    std::byte* out = mine().output + (all_reduce ? offset : i * chunk_bytes_);
    SumRanks(mine().dtype, inputs, out, count(i));
    SHALE_RETURN_IF_ERROR(receive(i + 2));
    for (size_t p = 0; p < layout().peers().size() && all_reduce; ++p) {
      SHALE_RETURN_IF_ERROR(transfers.SendToAll(layout().peers()[p], mine().output, mine().elements * element_bytes(),
                                                offset, count(i) * element_bytes()));
    }
  }
  return absl::OkStatus();
}

void GlooCommunicator::CopyFromLocalRanks() {
  const std::vector<int>& local = layout().local_ranks();
  for (int rank = 0; rank < size(); ++rank) {
    const int holder = layout().is_local(rank) ? rank : local[ReceiverOf(rank)];
    const Part part = PartOf(rank);
    if (holder == rank_ || part.count == 0) continue;
    const int64_t offset = part.begin * element_bytes();
    CopyBytes(mine().output + offset, call_of(holder).output + offset, part.count * element_bytes());
  }
}

}  // namespace shale
