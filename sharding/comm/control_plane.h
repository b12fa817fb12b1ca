// ControlPlane: carries small messages between the processes of a job, by which they decide together.
//
// Ranks exchange tensors through communicators. Processes exchange decisions through the control plane: whether to
// stop, which checkpoint to resume from, whether a save succeeded everywhere. To decide, every process gathers what all
// processes know and computes the same answer from it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Calls on one channel are matched in order, and calls on different channels are independent. A channel is used by one
// thread at a time, so a save that runs beside the steps has a channel of its own.
enum class ControlChannel : uint8_t { kSteps, kCheckpoints };
inline constexpr int kControlChannels = 2;

// Every process makes the same calls on a channel, in the same order. Each call waits for all processes. It returns
// Aborted if a process has ended, and DeadlineExceeded if a process does not come. After an error the channel cannot be
// used any more. A message has at most kMostMessageBytes.
class ControlPlane {
 public:
  static constexpr int64_t kMostMessageBytes = int64_t{64} << 20;

  virtual ~ControlPlane() = default;

  virtual int process() const = 0;    // From 0. Process 0 writes what the job writes once.
  virtual int processes() const = 0;  // At least 1.

  // Returns the messages of all processes, by process.
  virtual absl::StatusOr<std::vector<std::string>> Gather(ControlChannel channel, std::string message) = 0;
  // Returns the message of process 0. Ignores the messages of the others.
  virtual absl::StatusOr<std::string> Broadcast(ControlChannel channel, std::string message) = 0;
  // Waits until all processes have called it.
  virtual absl::Status Barrier(ControlChannel channel) = 0;
};

// Returns the control plane of a job that runs in one process. Its calls never wait and never fail.
ControlPlane& OneProcess();

// Marks an error as one that all processes of the job have, so that none needs to be told of it. AgreeOnStatus and
// CheckSameEverywhere do so.
absl::Status Agreed(absl::Status error);
bool IsAgreed(const absl::Status& error);

// Returns OK if `local` is OK in every process. Otherwise returns in all processes the error of the first process that
// has one, with the number of that process if there are several processes. An error on which they have agreed before
// (IsAgreed) comes back as it is.
absl::Status AgreeOnStatus(ControlPlane& control, ControlChannel channel, const absl::Status& local);

// Returns FailedPrecondition if `value` differs between processes. The message names `what`, the first process whose
// value differs from that of process 0, and both values; of texts with several lines, the first lines that differ.
absl::Status CheckSameEverywhere(ControlPlane& control, ControlChannel channel, absl::string_view what,
                                 absl::string_view value);

}  // namespace shale
