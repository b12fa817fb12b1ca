// ControlPlane: small messages between the processes of a job, by which they decide together.
//
// Ranks exchange tensors through communicators. Processes exchange decisions through the control plane: whether to
// stop, which checkpoint to resume from, whether a save succeeded everywhere. Whoever decides gathers what each process
// knows and computes the same answer from it everywhere.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Calls on one channel are matched in order; calls on different channels are independent. One thread at a time uses a
// channel, so a save that runs beside the steps has one of its own.
enum class ControlChannel : uint8_t { kSteps, kCheckpoints };
inline constexpr int kControlChannels = 2;

// Every process makes the same calls on a channel, in the same order. Each call waits for all processes. An error
// (Aborted or DeadlineExceeded: a process has ended or does not come) is final for the channel. Messages have at most
// kMostMessageBytes.
class ControlPlane {
 public:
  static constexpr int64_t kMostMessageBytes = int64_t{64} << 20;

  virtual ~ControlPlane() = default;

  virtual int process() const = 0;    // From 0. Process 0 writes what the job writes once.
  virtual int processes() const = 0;  // At least 1.

  // Returns the messages of all processes, by process.
  virtual absl::StatusOr<std::vector<std::string>> Gather(ControlChannel channel, std::string message) = 0;
  // Returns the message of process 0; those of the others do not count.
  virtual absl::StatusOr<std::string> Broadcast(ControlChannel channel, std::string message) = 0;
  // Returns when all processes have called it.
  virtual absl::Status Barrier(ControlChannel channel) = 0;
};

// Returns the control plane of a job that runs in one process. Nothing waits, and nothing fails.
ControlPlane& OneProcess();

// Returns OK if `local` is OK in every process, and otherwise the same error in all of them: the first one by process,
// with the number of its process if there are several.
absl::Status AgreeOnStatus(ControlPlane& control, ControlChannel channel, const absl::Status& local);

// Returns FailedPrecondition if `value` differs between processes; the message names `what` and the first process that
// differs from process 0.
absl::Status CheckSameEverywhere(ControlPlane& control, ControlChannel channel, absl::string_view what,
                                 absl::string_view value);

}  // namespace shale
