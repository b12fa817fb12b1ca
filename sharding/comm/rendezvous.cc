#include "sharding/comm/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sharding/comm/deadline.h"

namespace shale {
namespace {

bool SameWish(const Rendezvous::Call& a, const Rendezvous::Call& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.elements == b.elements;
}

std::string Describe(const Rendezvous::Call& call) {
  return absl::StrCat(ToString(call.kind), " of ", call.elements, " ", ToString(call.dtype));
}

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

}  // namespace

Rendezvous::Rendezvous(int size, double timeout_seconds)
    : timeout_seconds_(timeout_seconds), calls_(size), present_(size, false) {}

absl::Status Rendezvous::Meet(int rank, const Call& call) {
  std::unique_lock lock(mutex_);
  if (!aborted_.ok()) return aborted_;
  calls_[rank] = call;
  present_[rank] = true;
  if (++arrived_ == size()) {
    ++meetings_;
    agreement_ = Agreement();
    if (!agreement_.ok()) aborted_ = agreement_;
    EndRound();
    return agreement_;
  }
  const uint64_t round = round_;
  const auto over = [&] { return round_ != round || !aborted_.ok(); };
  if (timeout_seconds_ <= 0) round_ended_.wait(lock, over);
  for (Deadline deadline(timeout_seconds_); !over() && !round_ended_.wait_for(lock, deadline.Pause(), over);) {
    if (!deadline.Passed()) continue;
    aborted_ = absl::DeadlineExceededError(
        absl::StrCat("rank ", rank, " waited ", timeout_seconds_, " s for ", Missing(), " in collective ",
                     meetings_ + 1, ", ", Describe(call), "; look for the error of a rank that is missing"));
    round_ended_.notify_all();
  }
  // If all ranks have met, their agreement holds even if the group has been aborted since, because the peers have begun
  // to work.
  return round_ != round ? agreement_ : aborted_;
}

void Rendezvous::Sync() {
  std::unique_lock lock(mutex_);
  if (++arrived_ == size()) {
    EndRound();
    return;
  }
  const uint64_t round = round_;
  round_ended_.wait(lock, [&] { return round_ != round; });
}

void Rendezvous::EndRound() {
  arrived_ = 0;
  std::fill(present_.begin(), present_.end(), false);
  ++round_;
  round_ended_.notify_all();
}

void Rendezvous::Abort(absl::Status reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = std::move(reason);
  round_ended_.notify_all();
}

absl::Status Rendezvous::Agreement() const {
  // Each party is the ranks that want the same collective. Parties are in the order of their first ranks.
  std::vector<std::vector<int>> parties;
  for (int rank = 0; rank < size(); ++rank) {
    auto party = std::find_if(parties.begin(), parties.end(),
                              [&](const std::vector<int>& p) { return SameWish(calls_[p[0]], calls_[rank]); });
    if (party == parties.end()) party = parties.insert(party, std::vector<int>());
    party->push_back(rank);
  }
  if (parties.size() == 1) return absl::OkStatus();
  std::string message = absl::StrCat("the ranks of a group disagree about collective ", meetings_);
  absl::string_view separator = ": ";
  for (const std::vector<int>& party : parties) {
    absl::StrAppend(&message, separator, Ranks(party), party.size() == 1 ? " wants " : " want ",
                    Describe(calls_[party[0]]));
    separator = "; ";
  }
  return absl::InvalidArgumentError(message);
}

std::string Rendezvous::Missing() const {
  std::vector<int> missing;
  for (int rank = 0; rank < size(); ++rank) {
    if (!present_[rank]) missing.push_back(rank);
  }
  return Ranks(missing);
}

}  // namespace shale
