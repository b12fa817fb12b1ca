// TemplateBudget: bounds what the rendering of a chat template builds and does.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace shale {

// Counts the bytes of all values that a rendering makes, and of those that it reads through, while it does so. It never
// gives bytes back, so one bound holds memory and time. Used by one thread.
class TemplateBudget {
 public:
  // What a template may build in any case: a quarter of a GiB.
  static constexpr double kLeastBytes = 1 << 28;
  // How often a template may build the conversation besides.
  static constexpr double kTimesInput = 16;
  // Bytes that an element of a list takes, and a string of its own.
  static constexpr double kElementBytes = 160;

  // `input_bytes` is the size of the conversation.
  explicit TemplateBudget(double input_bytes) : left_(kLeastBytes + kTimesInput * input_bytes) {}

  // Takes `bytes`, before they are built. Returns InvalidArgument without a line if they are more than what is left.
  absl::Status Take(double bytes) {
    left_ -= bytes;
    if (left_ >= 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "the template builds too much: more than 256 MiB and 16 times the conversation in all");
  }
  absl::Status TakeElements(double count) { return Take(count * kElementBytes); }

 private:
  double left_;
};

}  // namespace shale
