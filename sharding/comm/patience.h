// A limit on waiting for peers.
#pragma once

#include <algorithm>
#include <chrono>

namespace shale {

// For who looks again and again whether what it waits for has come. Between two looks at most a quarter of the limit
// counts: a process that was stopped for long (Ctrl-Z, a container's pause) has not waited for its peers meanwhile,
// which were stopped too. One thread.
class Patience {
 public:
  // 0: endless.
  explicit Patience(double limit_seconds = 0) : limit_seconds_(limit_seconds) {}

  // Whether it has come to its end: a look.
  bool Ended() {
    const Clock::time_point now = Clock::now();
    spent_seconds_ += std::min(std::chrono::duration<double>(now - looked_).count(), kMostAtOnce * limit_seconds_);
    looked_ = now;
    return limit_seconds_ > 0 && spent_seconds_ >= limit_seconds_;
  }
  // How long to wait for until the next look.
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
