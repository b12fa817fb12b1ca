#include "sharding/comm/control_plane.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr char kAgreed[] = "shale/agreed";  // The payload's name; it has no content.

class LoneProcess : public ControlPlane {
 public:
  int process() const override { return 0; }
  int processes() const override { return 1; }
  absl::StatusOr<std::vector<std::string>> Gather(ControlChannel, std::string message) override {
    return std::vector<std::string>{std::move(message)};
  }
  absl::StatusOr<std::string> Broadcast(ControlChannel, std::string message) override { return message; }
  absl::Status Barrier(ControlChannel) override { return absl::OkStatus(); }
};

// Returns a status as a message: its code, which is negative if all processes have the status, a space, its text.
std::string Encode(const absl::Status& status) {
  const int code = static_cast<int>(status.code());
  return absl::StrCat(IsAgreed(status) ? -code : code, " ", status.message());
}

absl::StatusOr<absl::Status> Decode(absl::string_view message) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(message, absl::MaxSplits(' ', 1));
  int code = 0;
  if (!absl::SimpleAtoi(parts.first, &code)) {
    return absl::InternalError(absl::StrCat("wanted a status from a process, found \"", message.substr(0, 40), "\""));
  }
  const absl::Status status(static_cast<absl::StatusCode>(std::abs(code)), parts.second);
  return code < 0 ? Agreed(status) : status;
}

// Returns the first lines in which two texts differ.
std::pair<absl::string_view, absl::string_view> FirstDifference(absl::string_view a, absl::string_view b) {
  const std::vector<absl::string_view> first = absl::StrSplit(a, '\n'), second = absl::StrSplit(b, '\n');
  size_t line = 0;
  while (line + 1 < std::min(first.size(), second.size()) && first[line] == second[line]) ++line;
  return {absl::StripAsciiWhitespace(first[line]), absl::StripAsciiWhitespace(second[line])};
}

}  // namespace

absl::Status Agreed(absl::Status error) {
  if (!error.ok()) error.SetPayload(kAgreed, absl::Cord());
  return error;
}

bool IsAgreed(const absl::Status& error) { return error.GetPayload(kAgreed).has_value(); }

ControlPlane& OneProcess() {
  static LoneProcess lone;
  return lone;
}

absl::Status AgreeOnStatus(ControlPlane& control, ControlChannel channel, const absl::Status& local) {
  if (control.processes() == 1) return local;
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all, control.Gather(channel, Encode(local)));
  for (size_t process = 0; process < all.size(); ++process) {
    SHALE_ASSIGN_OR_RETURN(const absl::Status theirs, Decode(all[process]));
    if (IsAgreed(theirs)) return theirs;  // Its text says already whose error it was.
    if (!theirs.ok()) {
      return Agreed(absl::Status(theirs.code(), absl::StrCat("process ", process, ": ", theirs.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSameEverywhere(ControlPlane& control, ControlChannel channel, absl::string_view what,
                                 absl::string_view value) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> all, control.Gather(channel, std::string(value)));
  for (size_t process = 1; process < all.size(); ++process) {
    if (all[process] == all[0]) continue;
    const auto [first, other] = FirstDifference(all[0], all[process]);
    return Agreed(absl::FailedPreconditionError(
        absl::StrCat("processes disagree about ", what, ": process 0 has \"", first, "\", process ", process, " has \"",
                     other, "\"; start all of them with the same job, data and program")));
  }
  return absl::OkStatus();
}

}  // namespace shale
