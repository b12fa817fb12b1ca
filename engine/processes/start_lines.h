// StartLines: says what the start of a large run is doing, which may take minutes before its plan is printed.
#pragma once

#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/api/events.h"

namespace shale {

// Passes all events on to `next`, which it borrows. If the plan has at least kLargeArenaBytes for a rank, calls `print`
// with a line about the plan, and with one as each part of the start begins.
class StartLines : public EventSink {
 public:
  static constexpr int64_t kLargeArenaBytes = int64_t{1} << 30;

  StartLines(EventSink& next, std::function<void(absl::string_view)> print) : next_(next), print_(std::move(print)) {}

  void Take(const RunEvent& event) override;

 private:
  EventSink& next_;
  const std::function<void(absl::string_view)> print_;
  bool large_ = false;
};

}  // namespace shale
