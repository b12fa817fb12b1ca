#include "sharding/comm/gloo/transfers.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/gloo/tags.h"

namespace shale {

absl::Status GlooTransfers::Send(int to, const std::byte* memory, int64_t size_bytes, int64_t offset,
                                 int64_t count_bytes) {
  return SendTo(group_.layout().process_of(to), to, memory, size_bytes, offset, count_bytes);
}

absl::Status GlooTransfers::SendToAll(int process, const std::byte* memory, int64_t size_bytes, int64_t offset,
                                      int64_t count_bytes) {
  return SendTo(process, kGlooAllRanks, memory, size_bytes, offset, count_bytes);
}

absl::Status GlooTransfers::SendTo(int process, int to, const std::byte* memory, int64_t size_bytes, int64_t offset,
                                   int64_t count_bytes) {
  Sending& sending = sending_[process];
  if (sending.buffer == nullptr) sending.buffer = group_.links().Wrap(memory, size_bytes);
  const uint64_t tag = GlooDataTag(number_, wish_, rank_, to);
  const absl::Status status = group_.links().Send(*sending.buffer, process, tag, offset, count_bytes);
  if (!status.ok()) return group_.Explain(status);
  ++sending.messages;
  return absl::OkStatus();
}

absl::Status GlooTransfers::Receive(int from, GlooBuffer& buffer, int64_t offset, int64_t count_bytes) {
  return ReceiveFrom(from, rank_, buffer, offset, count_bytes);
}

absl::Status GlooTransfers::ReceiveForAll(int from, GlooBuffer& buffer, int64_t offset, int64_t count_bytes) {
  return ReceiveFrom(from, kGlooAllRanks, buffer, offset, count_bytes);
}

absl::Status GlooTransfers::ReceiveFrom(int from, int to, GlooBuffer& buffer, int64_t offset, int64_t count_bytes) {
  const uint64_t tag = GlooDataTag(number_, wish_, from, to);
  const absl::Status status =
      group_.links().Receive(buffer, group_.layout().process_of(from), tag, offset, count_bytes);
  return status.ok() ? status : group_.Explain(status);
}

absl::Status GlooTransfers::AwaitReceived(int from, GlooBuffer& buffer) {
  return group_.AwaitReceived(place(), buffer, [&] { return absl::StrCat("the data of rank ", from); });
}

absl::Status GlooTransfers::AwaitSent() {
  for (int process = 0; process < std::ssize(sending_); ++process) {
    Sending& sending = sending_[process];
    const auto missing = [&] { return absl::StrCat(RankList(group_.layout().ranks_of(process)), " to take data"); };
    for (; sending.messages > 0; --sending.messages) {
      SHALE_RETURN_IF_ERROR(group_.AwaitSent(place(), *sending.buffer, missing));
    }
  }
  return absl::OkStatus();
}

}  // namespace shale
