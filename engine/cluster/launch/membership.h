// Membership: a process's place in a job of several processes, from joining to leaving.
//
// Process 0 runs a small service, the control plane. Every process, also process 0, attends it for as long as the job
// lasts. Through it the processes decide together (ControlPlane), exchange addresses and ids (Put and Get), and hear of
// each other's end. Tensors go through communicators, never through here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cluster/launch/coordinator.h"
#include "engine/cluster/launch/credentials.h"
#include "engine/cluster/launch/process_place.h"
#include "sharding/comm/control_plane.h"
#include "sharding/comm/store.h"

namespace shale {

struct MembershipOptions {
  ProcessPlace place;              // place.address and place.ports are set.
  std::optional<TlsIdentity> tls;  // ReadTls. If it is not set, nothing is encrypted.
  // The secret of the job (ReadToken). Without `tls` it travels as it is: with "", or over a network in which others
  // can listen, everybody who reaches the port can join or end the job.
  std::string token;
  // What must be equal in all processes. The first difference ends the job at the start.
  Facts facts;
  double join_seconds = 300;  // How long to wait until all processes have joined.
  // Within this time after the last sign of life of a process, all others have given up on it. Heartbeats queue behind
  // messages, so SilenceSeconds of this must be more than what the network needs for the largest message, and for the
  // messages of all processes that a Gather returns.
  double heartbeat_seconds = 10;
  double wait_seconds = 600;  // How long a call of ControlPlane waits for the last process, after the first.
};

// The calls of ControlPlane, Put, Get, Abort and failure may come from any thread; see ControlChannel for which calls
// may overlap. Has a thread of its own, which sends signs of life, and threads of gRPC.
//
// A job fails if a process ends without leaving, is silent for SilenceSeconds, calls Abort, or does not come to a
// collective call. All processes then hear who and why: waiting and later calls return that error, and OnFailure is
// called. An error that speaks of peers only (Aborted, Unavailable, DeadlineExceeded) is held back for a moment,
// because the end of the process that caused it tells more. After a failure only destruction may follow.
class Membership : public ControlPlane, public Store {
 public:
  // Joins the job, and waits until all processes have. Process 0 serves the others from then on. Returns
  //   NotFound             if the name of process 0's host does not resolve before the deadline
  //   AlreadyExists        in process 0 if its port is taken
  //   PermissionDenied     if process 0 has another token; and, if process 0 has a single port, if one of both does not
  //                        accept the certificate of the other or has none
  //   FailedPrecondition   if processes disagree about facts, their number or who is who, with both values; in all
  //                        processes that have joined or join later
  //   DeadlineExceeded     if processes are missing, with their numbers, or process 0 cannot be reached
  //   Aborted              if a process that had joined has ended
  static absl::StatusOr<std::unique_ptr<Membership>> Join(const MembershipOptions& options);
  // Tells process 0 instead of joining that this process cannot take part, so that the others, which wait for it, fail
  // at once with `why`. In process 0 it tells those that come. Tries for join_seconds at most. Needs no facts.
  static void Decline(const MembershipOptions& options, const absl::Status& why);
  // Ends the job for all processes unless Leave has returned OK.
  ~Membership() override;

  int process() const override;
  int processes() const override;
  absl::StatusOr<std::vector<std::string>> Gather(ControlChannel channel, std::string message) override;
  absl::StatusOr<std::string> Broadcast(ControlChannel channel, std::string message) override;
  absl::Status Barrier(ControlChannel channel) override;

  // Returns the number of a process's host. Hosts are numbered from 0 in the order of their first processes.
  int host_of(int process) const;
  // Returns the numeric address of this host under which processes on all hosts of the job reach this one.
  const std::string& address() const;

  // Stores a value that every process can read. A key is stored once; another value for it ends the job. A key has at
  // most kMostNameBytes, a value kMostValueBytes, all of them together kMostStoredBytes.
  absl::Status Put(const std::string& key, const std::string& value) override;
  // Returns the value of a key, as soon as a process has stored it. Returns DeadlineExceeded after so many seconds.
  absl::StatusOr<std::string> Get(const std::string& key, double seconds) override;

  // Ends the job for all processes, with the error that this process found. Does nothing after a failure. Returns when
  // the others have been told, or after 2 s.
  void Abort(const absl::Status& why);
  // Returns why the job failed: OK if it has not.
  absl::Status failure() const;
  // Returns the process that made it fail, or -1 if it has not failed, or if no single process did it.
  int culprit() const;
  // Returns whether other processes still need this one, although the job has failed: process 0 tells them why.
  bool needed() const;
  // Sets what to do when the job fails, such as to abort communicators: `act` is called once, at once if the job has
  // failed already, otherwise on a thread of this class. It must return soon, and must not destroy this object.
  void OnFailure(std::function<void(const absl::Status&)> act);

  // Leaves the job, when this process is done. The others go on, unless they wait for this process. In process 0 it
  // waits, at most wait_seconds, until all others have left, because process 0 serves them. Returns the failure of the
  // job if there was one.
  absl::Status Leave();

 private:
  class Impl;
  explicit Membership(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shale
