// The large collectives of groups whose processes read one another's memory (memory.h):
//
//     hello           all ranks have come, and say where their operands are
//     work            each rank reads the operands of all others
//     [hello, work]   of an all-reduce: all sums are there, and each rank reads those of the others
//     hello           all ranks have read, so that each may overwrite its operands
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/check.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "sharding/comm/gloo/communicator.h"
#include "sharding/comm/sum_ranks.h"

namespace shale {
namespace {

// How much of all ranks together is read before it is summed, so that it stays in the cache, and of one rank at least.
constexpr int64_t kReadBytes = int64_t{256} << 10, kLeastReadBytes = 2048;

}  // namespace

absl::Status GlooCommunicator::RunInMemory() {
  const int local = static_cast<int>(layout().local_ranks().size());
  for (int place = 0; place < local && leads(); ++place) {
    const Rendezvous::Call& call = group_->rendezvous().call(place);
    const Operands operands = {call.input, call.output,
                               call.exchange == nullptr ? nullptr : call.exchange->sent.data()};
    std::memcpy(hello_->mine() + place * sizeof(Operands), &operands, sizeof(operands));
  }
  absl::Status status = leads() ? group_->Begin(number_, mine().wish()) : absl::OkStatus();
  status = AwaitAll(status, local * sizeof(Operands));
  if (status.ok()) TakeOperands();
  if (status.ok()) {
    switch (mine().kind) {
      case CollectiveKind::kAllGather: status = GatherInMemory(); break;
      case CollectiveKind::kAllToAll: status = AllToAllInMemory(); break;
      default: status = SumInMemory();
    }
  }
  if (mine().kind == CollectiveKind::kAllReduceSum) {
    status = AwaitAll(status, 0);
    if (status.ok()) status = CopySumsInMemory();
  }
  return AwaitAll(status, 0);
}

// Waits until all ranks of all processes call it. Every local rank must call it, because the others wait for it.
// Returns the group's error, which `status` is, if not OK.
absl::Status GlooCommunicator::AwaitAll(absl::Status status, int64_t sent_bytes) {
  group_->rendezvous().Sync();
  if (leads() && status.ok()) status = hello_->Send(number_, mine().wish(), sent_bytes);
  if (leads() && status.ok()) status = hello_->Await();
  group_->rendezvous().Sync();
  return leads() ? status : group_->status();
}

void GlooCommunicator::TakeOperands() {
  operands_.resize(size());
  for (int rank = 0; rank < size(); ++rank) {
    const int process = layout().process_of(rank);
    const std::byte* const of_process = layout().is_local(rank) ? hello_->mine() : hello_->data(process);
    std::memcpy(&operands_[rank], of_process + layout().place_of(rank) * sizeof(Operands), sizeof(Operands));
  }
}

absl::Status GlooCommunicator::Read(int rank, const std::byte* from, std::byte* to, int64_t size_bytes) {
  if (layout().is_local(rank)) {
    if (from != to) CopyBytes(to, from, size_bytes);
    return absl::OkStatus();
  }
  return Explained(group_->memory().Read(layout().process_of(rank), from, to, size_bytes));
}

// Returns the group's error if `status` is an error.
absl::Status GlooCommunicator::Explained(const absl::Status& status) {
  return status.ok() ? status : group_->Explain(status);
}

// Each rank begins with its own shard, so that the ranks do not all read the same one at once.
absl::Status GlooCommunicator::GatherInMemory() {
  const int64_t shard_bytes = InputBytes();
  for (int i = 0; i < size(); ++i) {
    const int rank = (rank_ + i) % size();
    SHALE_RETURN_IF_ERROR(Read(rank, operands_[rank].input, mine().output + rank * shard_bytes, shard_bytes));
  }
  return Explained(group_->memory().Check());
}

absl::Status GlooCommunicator::AllToAllInMemory() {
  for (int i = 0; i < size(); ++i) {
    const int rank = (rank_ + i) % size();
    ElementRange sent;
    SHALE_RETURN_IF_ERROR(Read(rank, reinterpret_cast<const std::byte*>(operands_[rank].sent + rank_),
                               reinterpret_cast<std::byte*>(&sent), sizeof(sent)));
    SHALE_RETURN_IF_ERROR(Explained(group_->memory().Check()));  // Otherwise `sent` may be anything.
    SHALE_RETURN_IF_ERROR(CheckPieceFrom(rank, sent));
    if (sent.begin == sent.end) continue;
    SHALE_RETURN_IF_ERROR(Read(rank, operands_[rank].input + sent.begin * element_bytes(),
                               mine().output + mine().exchange->received[rank].begin * element_bytes(),
                               (sent.end - sent.begin) * element_bytes()));
  }
  return Explained(group_->memory().Check());
}

absl::Status GlooCommunicator::SumInMemory() {
  const Part part = PartOf(rank_);
  const int64_t remote = layout().remote_ranks().size();
  const int64_t chunk_bytes = std::clamp(kReadBytes / remote / 64 * 64, kLeastReadBytes, chunk_bytes_);
  const int64_t chunk = chunk_bytes / element_bytes();
  std::vector<const std::byte*> inputs(size());
  for (int64_t at = 0; at < part.count; at += chunk) {
    const int64_t count = std::min(chunk, part.count - at), offset = (part.begin + at) * element_bytes();
    std::byte* staged = staging_.data();
    for (int rank = 0; rank < size(); ++rank) {
      inputs[rank] = operands_[rank].input + offset;
      if (layout().is_local(rank)) continue;
      SHALE_RETURN_IF_ERROR(Read(rank, inputs[rank], staged, count * element_bytes()));
      inputs[rank] = staged;
      staged += chunk_bytes;
    }
    const bool all_reduce = mine().kind == CollectiveKind::kAllReduceSum;
    SumRanks(mine().dtype, inputs, mine().output + (all_reduce ? offset : at * element_bytes()), count);
  }
  return Explained(group_->memory().Check());
}

absl::Status GlooCommunicator::CopySumsInMemory() {
  for (int i = 1; i < size(); ++i) {
    const int rank = (rank_ + i) % size();
    const Part part = PartOf(rank);
    const int64_t offset = part.begin * element_bytes();
    SHALE_RETURN_IF_ERROR(
        Read(rank, operands_[rank].output + offset, mine().output + offset, part.count * element_bytes()));
  }
  return Explained(group_->memory().Check());
}

}  // namespace shale
