// The threads of a GlooGroup: one waits for notices of peers, one looks at connections and deadlines.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sharding/comm/gloo/group.h"
#include "sharding/comm/gloo/tags.h"

namespace shale {
namespace {

// How often connections and deadlines are looked at.
constexpr std::chrono::milliseconds kTick{20};
// For how many ticks a connection must be lost before the group fails for that. A peer that ends in order has sent its
// notice before, and on a busy host the thread that takes it may come late. The notice tells more.
constexpr int kTicksToTakeNotice = 20;
// How long a rank has to add its wait to the error of a peer whose deadline has passed.
constexpr std::chrono::milliseconds kTimeToAdd{500};

}  // namespace

bool GlooGroup::Ending() const { return !status_.ok() || stopping_; }

void GlooGroup::TakeNotices() {
  const NoBrokenPipes no_broken_pipes;
  const int slot = static_cast<int>(awaited_.size()) - 1;
  for (;;) {
    GlooNotice notice;
    // Gloo keeps a pending receive of a destroyed buffer, which would swallow a notice. So a buffer is used until a
    // connection is lost in the middle of a notice, after which nothing is pending.
    const std::unique_ptr<GlooBuffer> buffer = links_->Wrap(&notice, sizeof(notice));
    for (bool usable = true; usable;) {
      std::vector<int> processes;
      {
        std::unique_lock lock(mutex_);
        if (closed_ || stopping_) return;
        for (const int peer : layout_.peers()) {
          if (lost_ticks_[peer] == 0) processes.push_back(peer);
        }
      }
      if (processes.empty()) return;
      if (!links_->ReceiveFromAny(*buffer, processes, kGlooNoticeTag, sizeof(notice)).ok()) {
        // A peer was lost before its notice could begin. The other thread will know it soon.
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kTick, [&] { return closed_ || stopping_; });
        continue;
      }
      {
        std::lock_guard lock(mutex_);
        if (closed_ || stopping_) return;
        awaited_[slot] = buffer.get();
      }
      bool received = false;
      int process = -1;
      usable = CallGloo([&] { received = buffer->waitRecv(&process, kGlooForever); }).ok();
      LeaveWait(slot);
      if (usable && !received) return;
      if (usable) TakeNotice(notice, process);
    }
  }
}

// The other thread fails the group, so that this one goes on to take the notices of peers, which wait for that.
void GlooGroup::TakeNotice(const GlooNotice& notice, int process) {
  std::lock_guard lock(mutex_);
  if (!noticed_.ok()) return;
  if (notice.left_rank < 0) {
    const size_t size = strnlen(notice.message, sizeof(notice.message));
    noticed_ = absl::Status(static_cast<absl::StatusCode>(notice.code), absl::string_view(notice.message, size));
    if (noticed_.ok()) noticed_ = absl::InternalError("a peer failed without an error");
  } else {
    left_[process] = true;
    if (notice.collectives < left_after_) {
      left_after_ = notice.collectives;
      left_rank_ = notice.left_rank;
    }
    if (running_ > left_after_) noticed_ = absl::AbortedError(absl::StrCat("rank ", left_rank_, " left"));
  }
  if (!noticed_.ok()) changed_.notify_all();
}

void GlooGroup::Watch() {
  const NoBrokenPipes no_broken_pipes;
  // Gloo tells of a lost connection only those buffers that wait for a message which has not begun to arrive. So for
  // each peer there is one that waits for a message which is never sent.
  for (const int peer : layout_.peers()) {
    watched_[peer] = links_->Wrap(nullptr, 0);
    links_->Receive(*watched_[peer], peer, kGlooWatchTag, 0, 0).IgnoreError();
  }
  std::unique_lock lock(mutex_);
  while (!Ending()) {
    changed_.wait_for(lock, kTick, [&] { return Ending() || !noticed_.ok(); });
    if (Ending()) return;
    if (!noticed_.ok()) {
      if (absl::IsDeadlineExceeded(noticed_) && running_ != 0) {
        // The peer may have waited for a rank of this process, which then adds whom it waits for itself.
        expired_ = true;
        Wake();
        changed_.wait_for(lock, kTimeToAdd, [&] { return Ending(); });
        if (Ending()) return;
      }
      lock.unlock();
      Fail(noticed_);
      return;
    }
    if (running_ != 0 && !expired_ && deadline_.Passed()) {
      // The ranks that wait then name those that are missing.
      expired_ = true;
      Wake();
    }
    for (const int peer : layout_.peers()) {
      int& lost = lost_ticks_[peer];
      if (lost == kTicksToTakeNotice && !left_[peer]) {
        const std::string reason =
            absl::StrCat("lost ", RankList(layout_.ranks_of(peer)), " ", Current(),
                         ": the process has ended or closed its connections; look for its own error");
        lock.unlock();
        Fail(absl::UnavailableError(reason));
        return;
      }
      // An aborted wait returns at once, or throws if the connection is lost.
      if (lost == 0 && CallGloo([&] {
                         watched_[peer]->abortWaitRecv();
                         watched_[peer]->waitRecv(nullptr, kGlooForever);
                       }).ok()) {
        continue;
      }
      lost = std::min(lost + 1, kTicksToTakeNotice);
    }
  }
}

}  // namespace shale
