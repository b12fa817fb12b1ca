#include "sharding/comm/gloo/hello.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/gloo/tags.h"

namespace shale {

struct GlooHello::Header {
  uint64_t sequence = 0;  // Of the message, from 1. 0: nothing has arrived.
  int64_t elements = 0;
  int32_t kind = 0;
  int32_t dtype = 0;
  int64_t run = 0;
  int32_t instruction = 0;
  int32_t iteration = 0;
};

GlooHello::GlooHello(GlooGroup& group) : group_(group), mine_(kSlotBytes) {
  static_assert(sizeof(Header) <= kHeaderBytes && kCountBytes + 2 * kSlotBytes <= GlooMemory::kBoardBytes);
  const int64_t size_bytes = group.layout().processes() * kSlotBytes;
  sent_ = group.links().Wrap(mine_.data(), kSlotBytes);
  for (int i = 0; i < 2; ++i) {
    theirs_[i].resize(size_bytes);
    received_[i] = group.links().Wrap(theirs_[i].data(), size_bytes);
  }
}

const std::byte* GlooHello::Slot(uint64_t sequence, int process) const {
  if (on_boards()) return group_.memory().board(process) + kCountBytes + sequence % 2 * kSlotBytes;
  return theirs_[sequence % 2].data() + process * kSlotBytes;
}

uint32_t& GlooHello::CountOf(int process) const { return *reinterpret_cast<uint32_t*>(group_.memory().board(process)); }

// Nobody still reads the message before the last one, in whose place this one is: all have sent one since.
void GlooHello::Post(int64_t size_bytes) {
  const int process = group_.layout().process();
  std::memcpy(const_cast<std::byte*>(Slot(sequence_, process)), mine_.data(), size_bytes);
  std::atomic_ref<uint32_t>(CountOf(process)).store(static_cast<uint32_t>(sequence_), std::memory_order_release);
  syscall(SYS_futex, &CountOf(process), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

GlooHello::Header GlooHello::HeaderOf(int process) const {
  Header header;
  std::memcpy(&header, Slot(sequence_, process), sizeof(header));
  return header;
}

absl::Status GlooHello::Receive(uint64_t sequence) {
  for (const int peer : group_.layout().peers()) {
    std::memset(const_cast<std::byte*>(Slot(sequence, peer)), 0, sizeof(Header));
    const absl::Status status =
        group_.links().Receive(*received_[sequence % 2], peer, kGlooHelloTag, peer * kSlotBytes, kSlotBytes);
    if (!status.ok()) return group_.Explain(status);
  }
  return absl::OkStatus();
}

absl::Status GlooHello::Begin() { return on_boards() ? absl::OkStatus() : Receive(1); }

absl::Status GlooHello::Send(uint64_t number, const CollectiveWish& wish, int64_t size_bytes) {
  ++sequence_;
  number_ = number;
  wish_ = wish;
  if (!on_boards()) SHALE_RETURN_IF_ERROR(Receive(sequence_ + 1));
  const Header header = {.sequence = sequence_,
                         .elements = wish.elements,
                         .kind = static_cast<int32_t>(wish.kind),
                         .dtype = static_cast<int32_t>(wish.dtype),
                         .run = wish.place.run,
                         .instruction = wish.place.instruction,
                         .iteration = wish.place.iteration};
  std::memcpy(mine_.data(), &header, sizeof(header));
  if (on_boards()) {
    Post(kHeaderBytes + size_bytes);
    return group_.status();
  }
  for (const int peer : group_.layout().peers()) {
    const absl::Status status = group_.links().Send(*sent_, peer, kGlooHelloTag, 0, kHeaderBytes + size_bytes);
    if (!status.ok()) return group_.Explain(status);
  }
  return absl::OkStatus();
}

absl::Status GlooHello::Await() {
  const GlooLayout& layout = group_.layout();
  const auto missing = [&] { return Missing(); };
  for (const int peer : layout.peers()) {
    SHALE_RETURN_IF_ERROR(on_boards() ? group_.AwaitCount(0, CountOf(peer), static_cast<uint32_t>(sequence_), missing)
                                      : group_.AwaitReceived(0, *received_[sequence_ % 2], missing));
  }
  for (size_t i = 0; i < layout.peers().size() && !on_boards(); ++i) {
    SHALE_RETURN_IF_ERROR(group_.AwaitSent(0, *sent_, missing));
  }
  std::vector<CollectiveWish> wishes(layout.ranks(), wish_);
  std::vector<int> ranks(layout.ranks());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    ranks[rank] = rank;
    if (layout.is_local(rank)) continue;
    const Header header = HeaderOf(layout.process_of(rank));
    wishes[rank] = {.kind = static_cast<CollectiveKind>(header.kind),
                    .dtype = static_cast<DType>(header.dtype),
                    .elements = header.elements,
                    .place = {header.run, header.instruction, header.iteration}};
  }
  const absl::Status agreement = CheckAgreement(wishes, ranks, number_);
  if (!agreement.ok()) group_.Fail(agreement);
  return agreement.ok() ? agreement : group_.status();
}

// Names the ranks of the processes whose message has not arrived.
std::string GlooHello::Missing() const {
  std::vector<int> missing;
  for (const int peer : group_.layout().peers()) {
    if (HeaderOf(peer).sequence == sequence_) continue;
    const std::vector<int>& ranks = group_.layout().ranks_of(peer);
    missing.insert(missing.end(), ranks.begin(), ranks.end());
  }
  std::sort(missing.begin(), missing.end());
  return missing.empty() ? "its peers to take its data" : RankList(missing);
}

}  // namespace shale
