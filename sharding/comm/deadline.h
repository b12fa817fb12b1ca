// Deadline: limits how long to wait for peers.
#pragma once

#include <algorithm>
#include <chrono>

namespace shale {

// A deadline for code that polls. Of the time between two polls, at most a quarter of the limit counts as waiting. If
// the process was stopped for long (Ctrl-Z, a paused container), its peers were probably stopped too, so most of that
// time does not count. Used by one thread.
class Deadline {
 public:
  // 0 means no limit.
  explicit Deadline(double limit_seconds = 0) : limit_seconds_(limit_seconds) {}

  // Returns whether the deadline has passed. Each call is a poll.
  bool Passed() {
    const Clock::time_point now = Clock::now();
    spent_seconds_ += std::min(std::chrono::duration<double>(now - looked_).count(), kMostAtOnce * limit_seconds_);
    looked_ = now;
    return limit_seconds_ > 0 && spent_seconds_ >= limit_seconds_;
  }
  // Returns how long to wait before the next poll.
  std::chrono::duration<double> Pause() const {
    return std::chrono::duration<double>(limit_seconds_ * kMostAtOnce / 2);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr double kMostAtOnce = 0.25;

  double limit_seconds_;
  double spent_seconds_ = 0;
  Clock::time_point looked_ = Clock::now();
};

}  // namespace shale
