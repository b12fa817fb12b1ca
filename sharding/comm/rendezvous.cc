#include "sharding/comm/rendezvous.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "sharding/comm/deadline.h"

namespace shale {
namespace {

std::vector<int> FirstRanks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Rendezvous::Call Rendezvous::Call::Of(CollectiveKind kind, const Tensor& full, const Tensor& input,
                                      const Tensor& output, const CollectiveIssue& place) {
  return {.kind = kind,
          .dtype = full.dtype,
          .elements = full.elements(),
          .input = input.as<std::byte>(),
          .output = output.as<std::byte>(),
          .place = place};
}

Rendezvous::Call Rendezvous::Call::OfAllToAll(const RankPieces& sent, const RankPieces& received,
                                              const CollectiveIssue& place) {
  Call call = Of(CollectiveKind::kAllToAll, sent.vector, sent.vector, received.vector, place);
  call.elements = 0;
  call.exchange = Exchange::Of(sent, received);
  return call;
}

Rendezvous::Rendezvous(int size, double timeout_seconds) : Rendezvous(FirstRanks(size), timeout_seconds) {}

Rendezvous::Rendezvous(std::vector<int> ranks, double timeout_seconds)
    : ranks_(std::move(ranks)),
      timeout_seconds_(timeout_seconds),
      calls_(ranks_.size()),
      present_(ranks_.size(), false) {}

absl::Status Rendezvous::Meet(int rank, const Call& call) {
  std::unique_lock lock(mutex_);
  if (!aborted_.ok()) return aborted_;
  calls_[rank] = call;
  present_[rank] = true;
  if (++arrived_ == size()) {
    ++meetings_;
    agreement_ = Agreement();
    if (!agreement_.ok()) aborted_ = agreement_;
    EndRound(lock);
    return agreement_;
  }
  const uint64_t round = round_;
  const auto over = [&] { return round_ != round || !aborted_.ok(); };
  if (timeout_seconds_ <= 0) round_ended_.wait(lock, over);
  for (Deadline deadline(timeout_seconds_); !over() && !round_ended_.wait_for(lock, deadline.Pause(), over);) {
    if (!deadline.Passed()) continue;
    aborted_ = absl::DeadlineExceededError(
        absl::StrCat("rank ", ranks_[rank], " waited ", timeout_seconds_, " s for ", Missing(), " in collective ",
                     meetings_ + 1, ", ", ToString(call.wish()), "; look for the error of a rank that is missing"));
    round_ended_.notify_all();
  }
  // If all ranks have met, their agreement holds even if the group has been aborted since, because the peers have begun
  // to work.
  return round_ != round ? agreement_ : aborted_;
}

void Rendezvous::Sync() {
  std::unique_lock lock(mutex_);
  if (++arrived_ == size()) return EndRound(lock);
  const uint64_t round = round_;
  round_ended_.wait(lock, [&] { return round_ != round; });
}

void Rendezvous::EndRound(std::unique_lock<std::mutex>& lock) {
  arrived_ = 0;
  std::fill(present_.begin(), present_.end(), false);
  ++round_;
  lock.unlock();  // Otherwise the threads that are woken would at once wait for the mutex.
  round_ended_.notify_all();
}

void Rendezvous::Abort(absl::Status reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = std::move(reason);
  round_ended_.notify_all();
}

absl::Status Rendezvous::Agreement() const {
  std::vector<CollectiveWish> wishes;
  for (const Call& call : calls_) wishes.push_back(call.wish());
  SHALE_RETURN_IF_ERROR(CheckAgreement(wishes, ranks_, meetings_));
  return calls_[0].kind == CollectiveKind::kAllToAll ? AgreementOnPieces() : absl::OkStatus();
}

// Compares what the ranks that meet send one another.
absl::Status Rendezvous::AgreementOnPieces() const {
  for (int from = 0; from < size(); ++from) {
    for (int to = 0; to < size(); ++to) {
      const ElementRange sent = calls_[from].exchange->sent[ranks_[to]];
      const ElementRange received = calls_[to].exchange->received[ranks_[from]];
      SHALE_RETURN_IF_ERROR(
          CheckPiece(ranks_[from], sent.end - sent.begin, ranks_[to], received.end - received.begin, meetings_));
    }
  }
  return absl::OkStatus();
}

std::string Rendezvous::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (!present_[rank]) missing.push_back(ranks_[rank]);
  }
  return RankList(missing);
}

}  // namespace shale
