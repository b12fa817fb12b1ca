#include "sharding/comm/gloo/group.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sharding/comm/gloo/tags.h"

namespace shale {
namespace {

// How long a process that ends waits until its peers have taken its notice. A peer that is stopped never takes it.
constexpr std::chrono::milliseconds kNoticeTime{500};
// How long a rank whose connection fails waits for the thread that finds out why.
constexpr std::chrono::milliseconds kExplainTime{3000};

}  // namespace

GlooGroup::GlooGroup(GlooLayout layout, std::unique_ptr<GlooLinks> links, std::unique_ptr<GlooMemory> memory,
                     double timeout_seconds)
    : layout_(std::move(layout)),
      links_(std::move(links)),
      memory_(std::move(memory)),
      timeout_seconds_(timeout_seconds),
      rendezvous_(layout_.local_ranks(), timeout_seconds),
      awaited_(layout_.local_ranks().size() + 1),
      left_(layout_.processes()),
      lost_ticks_(layout_.processes()),
      watched_(layout_.processes()) {
  if (layout_.peers().empty()) return;
  notices_ = std::thread([this] { TakeNotices(); });
  watch_ = std::thread([this] { Watch(); });
}

GlooGroup::~GlooGroup() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    WakeNotices();
  }
  changed_.notify_all();
  if (notices_.joinable()) notices_.join();
  if (watch_.joinable()) watch_.join();
  links_->Close();
}

std::string GlooGroup::Current() const {
  if (begun_ == 0) return "before the first collective";
  return absl::StrCat(running_ != 0 ? "in" : "after", " collective ", begun_, ", ", ToString(wish_));
}

absl::Status GlooGroup::status() {
  std::unique_lock lock(mutex_);
  if (!status_.ok()) changed_.wait(lock, [&] { return closed_; });
  return status_;
}

void GlooGroup::Fail(absl::Status reason) {
  {
    std::unique_lock lock(mutex_);
    if (!status_.ok()) {
      changed_.wait(lock, [&] { return closed_; });
      return;
    }
    status_ = reason;
    memory_->Withdraw();
    Wake();
  }
  changed_.notify_all();
  rendezvous_.Abort(reason);
  GlooNotice notice = {.code = static_cast<int32_t>(reason.code())};
  const size_t size = std::min(reason.message().size(), sizeof(notice.message) - 1);
  std::memcpy(notice.message, reason.message().data(), size);
  Tell(notice);
  links_->Close();
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    WakeNotices();
  }
  changed_.notify_all();
}

// Sends the notice to all peers, and waits a short time for those that can still take it.
void GlooGroup::Tell(const GlooNotice& notice) {
  const NoBrokenPipes no_broken_pipes;
  std::vector<std::unique_ptr<GlooBuffer>> sent;
  for (const int peer : layout_.peers()) {
    std::unique_ptr<GlooBuffer> buffer = links_->Wrap(&notice, sizeof(notice));
    if (links_->Send(*buffer, peer, kGlooNoticeTag, 0, sizeof(notice)).ok()) sent.push_back(std::move(buffer));
  }
  const auto end = std::chrono::steady_clock::now() + kNoticeTime;
  for (const auto& buffer : sent) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    // A time-out makes Gloo close all connections, which is what comes next.
    CallGloo([&] { buffer->waitSend(nullptr, std::max(left, std::chrono::milliseconds(1))); }).IgnoreError();
  }
}

void GlooGroup::Leave(int rank, uint64_t collectives) {
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok() || std::exchange(told_, true)) return;
  }
  rendezvous_.Abort(absl::AbortedError(absl::StrCat("rank ", rank, " left")));
  Tell({.left_rank = rank, .collectives = collectives});
}

absl::Status GlooGroup::Begin(uint64_t number, const CollectiveWish& wish) {
  absl::Status reason;
  {
    std::lock_guard lock(mutex_);
    begun_ = running_ = number;
    wish_ = wish;
    // If ranks of one process wait for each other, they know better who is missing, so their time passes first.
    deadline_ = Deadline(timeout_seconds_ * (layout_.most_ranks() > 1 ? 1.1 : 1));
    if (number > left_after_) reason = absl::AbortedError(absl::StrCat("rank ", left_rank_, " left"));
  }
  if (!reason.ok()) Fail(std::move(reason));
  return status();
}

void GlooGroup::End() {
  std::lock_guard lock(mutex_);
  running_ = 0;
}

void GlooGroup::Wake() {
  for (size_t slot = 0; slot + 1 < awaited_.size(); ++slot) {
    if (awaited_[slot] == nullptr) continue;
    awaited_[slot]->abortWaitRecv();
    awaited_[slot]->abortWaitSend();
  }
}

void GlooGroup::WakeNotices() {
  if (awaited_.back() != nullptr) awaited_.back()->abortWaitRecv();
}

bool GlooGroup::EnterWait(int slot, GlooBuffer* buffer) {
  std::lock_guard lock(mutex_);
  if (!status_.ok() || stopping_ || expired_) return false;
  awaited_[slot] = buffer;
  return true;
}

void GlooGroup::LeaveWait(int slot) {
  std::lock_guard lock(mutex_);
  awaited_[slot] = nullptr;
}

absl::Status GlooGroup::AwaitReceived(int place, GlooBuffer& buffer, absl::FunctionRef<std::string()> missing) {
  return Await(
      place, buffer, [&] { return buffer.waitRecv(nullptr, kGlooForever); }, missing);
}

absl::Status GlooGroup::AwaitSent(int place, GlooBuffer& buffer, absl::FunctionRef<std::string()> missing) {
  return Await(
      place, buffer, [&] { return buffer.waitSend(nullptr, kGlooForever); }, missing);
}

absl::Status GlooGroup::Await(int slot, GlooBuffer& buffer, absl::FunctionRef<bool()> wait,
                              absl::FunctionRef<std::string()> missing) {
  absl::Status waited;
  if (EnterWait(slot, &buffer)) {
    bool done = false;
    waited = CallGloo([&] { done = wait(); });
    LeaveWait(slot);
    if (done) return absl::OkStatus();
  }
  return Unsuccessful(slot, waited, missing);
}

// Nobody wakes this wait when the group fails, so it looks at the group every kLook.
absl::Status GlooGroup::AwaitCount(int place, uint32_t& word, uint32_t value,
                                   absl::FunctionRef<std::string()> missing) {
  constexpr timespec kLook = {.tv_sec = 0, .tv_nsec = 20'000'000};
  while (EnterWait(place, nullptr)) {
    const uint32_t count = std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire);
    if (static_cast<int32_t>(count - value) >= 0) return absl::OkStatus();  // Counts wrap around.
    syscall(SYS_futex, &word, FUTEX_WAIT, count, &kLook, nullptr, 0);
  }
  return Unsuccessful(place, absl::OkStatus(), missing);
}

absl::Status GlooGroup::Unsuccessful(int slot, const absl::Status& waited, absl::FunctionRef<std::string()> missing) {
  std::string passed;
  {
    std::unique_lock lock(mutex_);
    // The peer that this rank waits for may have heard of a failure first. It passes the notice on and closes its
    // connections, which ends the wait. The thread that takes the notice here may come later than that.
    if (!waited.ok() && !expired_) {
      changed_.wait_for(lock, kExplainTime, [&] { return !status_.ok() || !noticed_.ok(); });
    }
    const std::string rank = RankList({layout_.local_ranks()[slot]});
    if (!status_.ok()) {
      // The group's error tells why.
    } else if (absl::IsDeadlineExceeded(noticed_)) {
      passed = absl::StrCat(noticed_.message(), "; ", rank, " waits for ", missing());
    } else if (expired_ && noticed_.ok()) {
      passed = absl::StrCat(rank, " waited ", timeout_seconds_, " s for ", missing(), " ", Current(),
                            "; look for the error of a rank that is missing");
    }
  }
  if (!passed.empty()) Fail(absl::DeadlineExceededError(passed));
  return Explain(waited);
}

// The threads of the group find out whose connection is lost, or get the reason from the peers.
absl::Status GlooGroup::Explain(const absl::Status& error) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kExplainTime, [&] { return !status_.ok(); });
  }
  Fail(error.ok() ? absl::InternalError("a wait ended before its group failed") : error);
  return status();
}

}  // namespace shale
