// Coordinator: decides what to tell the processes of a job. It is the control plane's logic, without the network.
//
//     forming ---- all have joined ----> running ---- all have left ----> ended
//        |                                  |
//        +------------- Fail ---------------+-------> failed
//
// The first failure wins. All members and everybody who comes later hear of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"
#include "sharding/comm/control_plane.h"
#include "sharding/comm/deadline.h"

namespace shale {

inline constexpr uint32_t kControlVersion = 1;  // Of proto/control.proto.
// The limits of what messages may hold. The first is that of all messages of a ControlPlane::Gather together, which its
// answer holds.
inline constexpr int64_t kMostGatheredBytes = int64_t{256} << 20;
inline constexpr size_t kMostNameBytes = 256;                   // A key, a fact, a host.
inline constexpr size_t kMostValueBytes = size_t{1} << 20;      // The value of a key.
inline constexpr int64_t kMostStoredBytes = int64_t{64} << 20;  // All keys and values.
inline constexpr size_t kMostReasonBytes = 4096;                // The message of a failure.

// Names and values that must be equal in all processes: job, build, digests.
using Facts = std::vector<std::pair<std::string, std::string>>;

// Return the period in which a process gives signs of life, and how long it may give none. After that, the others have
// the rest of `heartbeat_seconds` to end.
constexpr double BeatSeconds(double heartbeat_seconds) { return heartbeat_seconds / 16; }
constexpr double SilenceSeconds(double heartbeat_seconds) { return heartbeat_seconds * 0.8; }

struct CoordinatorOptions {
  int processes = 1;
  std::string launch;  // Processes of another launch are turned away.
  Facts facts;         // Those of process 0.
  // Why process 0 cannot take part; the job then fails with this error before it begins. OK if it can.
  absl::Status declines;
  double join_seconds = 300;
  double heartbeat_seconds = 10;
  double wait_seconds = 600;
};

// Returns the error of a job in which a process cannot take part, because of `why`.
absl::Status Declined(int process, int64_t pid, absl::string_view host, const absl::Status& why);

// Not thread-safe. The caller numbers the connections, and uses each number once.
class Coordinator {
 public:
  // Sends a message to a connection. Is called during the calls below. JobFailure and Leave are last messages.
  using Send = std::function<void(int64_t connection, ToMember message)>;

  Coordinator(const CoordinatorOptions& options, Send send);

  // Handles a message of a connection. The message is untrusted: whatever it holds, it can at worst fail the job, and
  // only if its sender is a member.
  void Receive(int64_t connection, const FromMember& message);
  // Handles the end of a connection, whatever its reason.
  void Disconnected(int64_t connection);
  // Checks all deadlines. Call it about every poll_seconds().
  void Poll();
  double poll_seconds() const;

  const absl::Status& failure() const { return failure_; }
  // Returns whether no process needs the coordinator any more: all have left; or the job has failed, and every process
  // has come and been told, and the connections of all members have ended. If a member failed the job by its silence,
  // its connection does not count.
  bool ended() const;

 private:
  enum class Presence { kAbsent, kJoined, kLeft, kGone };
  struct Member {
    Presence presence = Presence::kAbsent;
    int64_t connection = -1;
    std::string host;
    int64_t pid = 0;
    Deadline heard;
  };
  struct Channel {
    uint64_t round = 0;
    int arrived = 0;
    Arrival::Kind kind = Arrival::GATHER;
    int64_t bytes = 0;
    std::vector<bool> here;
    std::vector<std::string> messages;
    Deadline deadline;
  };

  void Join(int64_t connection, const JoinRequest& request);
  // Fails the job because a process says that it cannot take part, unless the job has formed already.
  void TakeDecline(int64_t connection, const JoinRequest& request);
  // Returns why a process cannot be a member. OK if it can.
  absl::Status Mismatch(const JoinRequest& request) const;
  void FormIfComplete();
  void Arrive(int process, const Arrival& arrival);
  void Put(int process, const KeyValue& pair);
  void Get(int process, const KeyRequest& request);
  void TakeAbort(int process, const JobFailure& abort);
  void TakeLeave(int process);
  void Tell(int process, ToMember message);
  void Refuse(int64_t connection, int process, const absl::Status& why);
  void Fail(int process, const absl::Status& why);
  std::string Name(int process) const;  // "process 3 (pid 17 on node1)".
  std::string List(const std::function<bool(int process)>& chosen) const;

  const CoordinatorOptions options_;
  const Send send_;
  std::vector<Member> members_;
  std::vector<bool> came_;             // By process, whether it has tried to join.
  std::map<int64_t, int> process_of_;  // By connection, of those that have joined.
  bool formed_ = false;
  int joined_ = 0;
  Deadline join_deadline_;
  std::array<Channel, kControlChannels> channels_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<std::string, std::vector<int>, std::less<>> waiting_;  // Processes that wait for a key.
  int64_t stored_bytes_ = 0;
  absl::Status failure_;
  // A process that aborted only because a peer does not answer, and its error. The end of that peer probably arrives
  // soon and tells more. Otherwise this error becomes the failure.
  int suspect_ = -1;
  absl::Status suspicion_;
  Deadline suspicion_deadline_;
};

}  // namespace shale
