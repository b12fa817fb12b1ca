#include "sharding/comm/nccl/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr double kWatch_s = 0.1;  // Period of the watchdog, or a tenth of the time-out if that is less.
constexpr double kMinWatch_s = 0.001;

}  // namespace

absl::Status NcclGroupStatus::status() const {
  if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return error_;
}

bool NcclGroupStatus::Set(absl::Status error) {
  std::lock_guard lock(mutex_);
  if (!error_.ok()) return false;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  return true;
}

NcclGroup::NcclGroup(std::vector<std::unique_ptr<NcclRank>> ranks, const NcclGroupChecks& checks)
    : ranks_(std::move(ranks)), checks_(checks), launched_(ranks_.size()) {
  if (checks.agreement) {
    rendezvous_ = std::make_unique<Rendezvous>(static_cast<int>(ranks_.size()), checks.timeout_seconds);
  }
}

absl::StatusOr<std::shared_ptr<NcclGroup>> NcclGroup::Create(std::vector<std::unique_ptr<NcclRank>> ranks,
                                                             const NcclGroupChecks& checks) {
  std::shared_ptr<NcclGroup> group(new NcclGroup(std::move(ranks), checks));
  if (absl::Status status = group->Connect(); !status.ok()) {
    group->Fail(status);
    return status;
  }
  group->watchdog_ = std::thread([watched = group.get()] { watched->WatchOver(); });
  return group;
}

// Polls all ranks in turn instead of waiting for one after another: if one rank fails, the others would wait for it.
absl::Status NcclGroup::Connect() {
  for (size_t connected = 0; connected < ranks_.size();) {
    connected = 0;
    for (const auto& rank : ranks_) {
      SHALE_ASSIGN_OR_RETURN(const bool done, rank->PollInit());
      connected += done;
    }
    if (connected < ranks_.size()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

NcclGroup::~NcclGroup() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

void NcclGroup::WatchOver() {
  const double period_s =
      checks_.timeout_seconds > 0 ? std::clamp(checks_.timeout_seconds / 10, kMinWatch_s, kWatch_s) : kWatch_s;
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::duration<double>(period_s), [&] { return done_; })) {
    lock.unlock();
    for (const auto& rank : ranks_) {
      if (absl::Status status = rank->Check(); !status.ok()) Fail(std::move(status));
    }
    lock.lock();
  }
}

void NcclGroup::Fail(absl::Status reason) {
  if (!status_->Set(reason)) return;
  if (rendezvous_ != nullptr) rendezvous_->Abort(std::move(reason));
  // Aborts all ranks, because NCCL frees the ranks of a process together when the last one is aborted.
  for (const auto& rank : ranks_) rank->Abort();
}

// Returns an error if the rank at `index` has launched a collective that a rank which left has not launched. REQUIRES:
// mutex_ is held.
absl::Status NcclGroup::WithoutThem(int index) const {
  if (left_ < 0 || launched_[index] <= launched_[left_]) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("rank ", ranks_[left_]->rank(), " left after ", launched_[left_],
                                         " collectives, but rank ", ranks_[index]->rank(), " has launched ",
                                         launched_[index]));
}

absl::Status NcclGroup::Admit(int index, NcclCollective& collective) {
  std::lock_guard lock(mutex_);
  collective.number = ++launched_[index];
  return WithoutThem(index);
}

absl::Status NcclGroup::Launch(int index, NcclCollective collective, CudaStream& stream,
                               absl::FunctionRef<NcclResult(NcclComm, cuda::StreamHandle)> enqueue,
                               std::shared_ptr<const Rendezvous::Exchange> exchange) {
  SHALE_RETURN_IF_ERROR(status_->status());
  stream.Guard(status_);
  return stream.Enqueue([&](cuda::StreamHandle handle) -> absl::Status {
    absl::Status status = Admit(index, collective);
    if (status.ok() && rendezvous_ != nullptr) {
      status = rendezvous_->Meet(index, {.kind = collective.kind,
                                         .dtype = collective.dtype,
                                         .elements = collective.elements,
                                         .exchange = std::move(exchange)});
    }
    if (status.ok()) {
      status = rank(index).Launch(collective, handle, [&](NcclComm comm) { return enqueue(comm, handle); });
    }
    if (status.ok()) return status;
    Fail(std::move(status));
    return status_->status();  // The group's first error, of which this one may be a consequence.
  });
}

void NcclGroup::Leave(int index) {
  NcclRank& rank = *ranks_[index];
  absl::Status reason;
  if (!rank.Idle()) {
    reason = absl::AbortedError(absl::StrCat("rank ", rank.rank(), " left before its collectives had finished"));
  } else {
    std::lock_guard lock(mutex_);
    if (left_ < 0 || launched_[index] < launched_[left_]) left_ = index;
    for (size_t other = 0; other < ranks_.size() && reason.ok(); ++other) reason = WithoutThem(static_cast<int>(other));
  }
  if (!reason.ok()) Fail(std::move(reason));
  // If a Fail in another thread has not aborted this rank yet, abort it here, because its collectives might run
  // forever.
  if (status_->status().ok()) {
    rank.Destroy();
  } else {
    rank.Abort();
  }
}

}  // namespace shale
