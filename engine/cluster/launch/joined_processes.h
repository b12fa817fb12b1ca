// JoinedProcesses: the processes that train a job together, from their start to their end.
//
//   SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<JoinedProcesses> joined,
//                          JoinedProcesses::Join(EnvironmentVariables(), ranks, facts));
//   Train(joined->ranks(), joined->control());
//   return joined->Leave();
//
// ranks() are the ranks of this process, and by control() it decides together with the others. After an error, call
// Fail(error) instead of Leave().
//
// A process that no launcher started is the only one of its job: it holds all ranks, and every call returns at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cluster/launch/membership.h"
#include "engine/cluster/launch/process_place.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Returns the variables of this process's environment. Call it while no other thread changes them.
Variables EnvironmentVariables();

// Returns the ranks of `ranks` that process `process` of `processes` holds: [process x ranks / processes, ...).
std::vector<int> RanksOfProcess(int64_t ranks, int process, int processes);

// Used by one thread, except where a function says otherwise.
class JoinedProcesses {
 public:
  // Finds out who started this process (FindProcessPlace), and joins the other processes of a job of `ranks` ranks.
  // `facts` must be equal in all of them. Returns the errors of FindProcessPlace, ReadTls, ReadToken and
  // Membership::Join, and InvalidArgument if there are more processes than ranks, or if SHALE_HEARTBEAT_SECONDS or
  // SHALE_JOIN_SECONDS (heartbeat_seconds and join_seconds of MembershipOptions) is no number of seconds.
  static absl::StatusOr<std::unique_ptr<JoinedProcesses>> Join(const Variables& variables, int64_t ranks, Facts facts);

  // Tells the processes with which this one was started, if any, that it cannot join them, because of an error that it
  // found before it could. Otherwise they would wait for it. Takes some seconds if they do not come. An error of its
  // own is ignored.
  static void Decline(const Variables& variables, const absl::Status& error);

  const ProcessPlace& place() const { return place_; }
  bool alone() const { return membership_ == nullptr; }
  bool leads() const { return place_.process == 0; }  // Process 0 owns the run folder, the console and the metrics.
  const std::vector<int>& ranks() const { return ranks_; }  // Of this process, ascending.
  // Return numbers of ranks: on the host that has the most; on this host; and on this host in processes with smaller
  // numbers.
  int64_t ranks_on_host() const { return ranks_on_host_; }
  int64_t ranks_here() const { return ranks_here_; }
  int64_t ranks_before_here() const { return ranks_before_here_; }
  ControlPlane& control() { return alone() ? OneProcess() : *membership_; }
  // REQUIRES of both: !alone().
  Store& store() { return *membership_; }
  const std::string& address() const { return membership_->address(); }

  // Calls `work` in process 0 and returns its result in every process. All processes make the same call.
  absl::StatusOr<std::string> InProcessZero(absl::FunctionRef<absl::StatusOr<std::string>()> work);
  // Checks that every process sees the file that process 0 writes at `path` and then removes. All make the same call.
  // Returns FailedPrecondition in all of them if one does not see it.
  absl::Status CheckShared(const std::string& path);

  // See Membership::OnFailure. Does nothing if this process is alone. Any thread may call it.
  void OnFailure(std::function<void(const absl::Status&)> act);
  // Ends the job after an error. If all processes have it (IsAgreed), leaves them. Otherwise ends the job for all.
  // Returns why the job failed: an error of peers is often only the consequence of one that another process has.
  absl::Status Fail(const absl::Status& error);
  // Returns whether the job failed because of another process. Any thread may call it.
  bool failed_elsewhere() const;
  // Returns whether other processes still need this one, although the job has failed. Any thread may call it.
  bool needed() const { return !alone() && membership_->needed(); }
  // Leaves the others, which need this process no more. Returns the failure of the job if there was one.
  absl::Status Leave();

 private:
  JoinedProcesses() = default;

  ProcessPlace place_;
  std::unique_ptr<Membership> membership_;  // Null if this process is alone.
  std::vector<int> ranks_;
  int64_t ranks_on_host_ = 0, ranks_before_here_ = 0, ranks_here_ = 0;
};

}  // namespace shale
