// Limits of the work that planning one job takes, for programs that plan jobs of others.
#pragma once

#include <atomic>
#include <chrono>

#include "absl/status/status.h"

namespace shale {

struct WorkLimits {
  using Clock = std::chrono::steady_clock;

  Clock::time_point deadline = Clock::time_point::max();
  // Set by any thread to end the work. Borrowed; may be null.
  const std::atomic<bool>* cancelled = nullptr;
  // The largest estimated number of instructions of a program. A thousand blocks have 40,000. Planning a program of
  // 2^18 instructions takes seconds and a gigabyte of memory.
  double instructions = 0x1p18;

  // Returns Cancelled or DeadlineExceeded if the work must end. Takes some ten nanoseconds. Any thread may call it.
  absl::Status Check() const {
    if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
      return absl::CancelledError("planning was cancelled");
    }
    if (deadline != Clock::time_point::max() && Clock::now() >= deadline) {
      return absl::DeadlineExceededError("planning took longer than its time limit");
    }
    return absl::OkStatus();
  }
};

}  // namespace shale
