// AllToAll over the connections. Ranks first tell one another how large the pieces are, because Gloo would end the
// process of a rank that gets more than it has room for.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/device/cpu/copy_bytes.h"
#include "sharding/comm/gloo/communicator.h"

namespace shale {
namespace {

int64_t SizeOfPiece(const ElementRange& piece) { return piece.end - piece.begin; }

}  // namespace

absl::Status GlooCommunicator::AllToAll() {
  SHALE_RETURN_IF_ERROR(AgreeOnPieces());
  CopyPieces();
  return ExchangePieces();
}

// Fails the group, and returns its error, if this rank does not want as much from `rank` as that one sends.
absl::Status GlooCommunicator::CheckPieceFrom(int rank, ElementRange sent) {
  absl::Status status =
      CheckPiece(rank, SizeOfPiece(sent), rank_, SizeOfPiece(mine().exchange->received[rank]), number_);
  if (status.ok()) return status;
  group_->Fail(std::move(status));
  return group_->status();
}

absl::Status GlooCommunicator::AgreeOnPieces() {
  GlooTransfers transfers(*group_, rank_, number_, mine().wish());
  const std::vector<int>& remote = layout().remote_ranks();
  const std::vector<ElementRange>& sent = mine().exchange->sent;
  std::vector<ElementRange> theirs(remote.size());  // What each remote rank sends to this one.
  std::vector<std::unique_ptr<GlooBuffer>> receiving;
  for (size_t r = 0; r < remote.size(); ++r) {
    receiving.push_back(group_->links().Wrap(&theirs[r], sizeof(ElementRange)));
    SHALE_RETURN_IF_ERROR(transfers.Receive(remote[r], *receiving[r], 0, sizeof(ElementRange)));
  }
  const auto* const all = reinterpret_cast<const std::byte*>(sent.data());
  for (const int to : remote) {
    SHALE_RETURN_IF_ERROR(
        transfers.Send(to, all, size() * sizeof(ElementRange), to * sizeof(ElementRange), sizeof(ElementRange)));
  }
  SHALE_RETURN_IF_ERROR(Agree());
  for (size_t r = 0; r < remote.size(); ++r) {
    SHALE_RETURN_IF_ERROR(transfers.AwaitReceived(remote[r], *receiving[r]));
  }
  SHALE_RETURN_IF_ERROR(transfers.AwaitSent());
  for (size_t r = 0; r < remote.size(); ++r) SHALE_RETURN_IF_ERROR(CheckPieceFrom(remote[r], theirs[r]));
  return absl::OkStatus();
}

absl::Status GlooCommunicator::ExchangePieces() {
  GlooTransfers transfers(*group_, rank_, number_, mine().wish());
  const Rendezvous::Exchange& exchange = *mine().exchange;
  std::vector<std::pair<int, std::unique_ptr<GlooBuffer>>> receiving;
  int64_t sent_elements = 0;  // The end of the last piece.
  for (const int from : layout().remote_ranks()) {
    const ElementRange piece = exchange.received[from];
    const int64_t bytes = SizeOfPiece(piece) * element_bytes();
    if (bytes == 0) continue;
    receiving.emplace_back(from, group_->links().Wrap(mine().output + piece.begin * element_bytes(), bytes));
    SHALE_RETURN_IF_ERROR(transfers.Receive(from, *receiving.back().second, 0, bytes));
  }
  for (const ElementRange& piece : exchange.sent) sent_elements = std::max(sent_elements, piece.end);
  for (const int to : layout().remote_ranks()) {
    const ElementRange piece = exchange.sent[to];
    if (SizeOfPiece(piece) == 0) continue;
    SHALE_RETURN_IF_ERROR(transfers.Send(to, mine().input, sent_elements * element_bytes(),
                                         piece.begin * element_bytes(), SizeOfPiece(piece) * element_bytes()));
  }
  for (const auto& [from, buffer] : receiving) SHALE_RETURN_IF_ERROR(transfers.AwaitReceived(from, *buffer));
  return transfers.AwaitSent();
}

// Copies what ranks of this process send to this one.
void GlooCommunicator::CopyPieces() {
  for (const int rank : layout().local_ranks()) {
    const ElementRange to = mine().exchange->received[rank], from = call_of(rank).exchange->sent[rank_];
    if (SizeOfPiece(to) == 0) continue;
    CopyBytes(mine().output + to.begin * element_bytes(), call_of(rank).input + from.begin * element_bytes(),
              SizeOfPiece(to) * element_bytes());
  }
}

}  // namespace shale
