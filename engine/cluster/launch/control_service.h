// The control plane's service: ControlServer is process 0's end, ControlConnection the end of each process. Outbox
// holds the messages that one of them is still to write.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cluster/launch/coordinator.h"
#include "engine/cluster/launch/credentials.h"
#include "engine/cluster/launch/host_address.h"
#include "proto/control.pb.h"

namespace shale {

// Thread-safe. gRPC may call back while a write starts, so a write must start outside all locks: Push under the owner's
// lock, for the order, and Next without it.
template <class Message>
class Outbox {
 public:
  void Push(Message message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_) waiting_.push_back(std::move(message));
  }
  // Returns the message whose write is to start now, or null if one is under way or none waits.
  const Message* Next() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (writing_ || closed_ || waiting_.empty()) return nullptr;
    writing_ = true;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    return &current_;
  }
  // Says that the write of the last Next has ended.
  void Written() {
    const std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
  }
  // End the outbox: after the messages in it have been written, or at once. Later messages are dropped.
  void EndAfterThese() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  void EndNow() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    waiting_.clear();
  }
  // Returns true once: in the first call after the outbox has ended and its last write too.
  bool Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_ || closed_ || writing_ || !waiting_.empty()) return false;
    closed_ = true;
    return true;
  }

 private:
  std::mutex mutex_;
  std::deque<Message> waiting_;
  Message current_;
  bool writing_ = false, ending_ = false, closed_ = false;
};

// Thread-safe.
class ControlConnection {
 public:
  // Begins a call to `target` (HostAddress::Target), without encryption if `tls` is not set. Calls `take` with each
  // message, one at a time, and `end` once, when the call has ended, with gRPC's status. Both are called on threads of
  // gRPC, must not block for long, and must not destroy the connection.
  ControlConnection(const std::string& target, const std::optional<TlsIdentity>& tls, const std::string& token,
                    std::function<void(const ToMember&)> take, std::function<void(const absl::Status&)> end);
  // Ends the call at once, and waits until `end` has returned.
  ~ControlConnection();

  void Send(FromMember message);

 private:
  class Call;
  std::unique_ptr<Call> call_;
};

// Serves until it is destroyed. Its calls are thread-safe. Uses threads of gRPC and one of its own.
class ControlServer {
 public:
  // Listens on the first port of `ports` that is free (0: any free port), on this address alone. Turns away, before it
  // reads anything of theirs, callers without the token and, if `tls` is set, callers without a certificate that its
  // authority accepts. Returns the error of CheckCanListen for the last port if no port is free.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const CoordinatorOptions& options,
                                                              const std::optional<TlsIdentity>& tls, std::string token,
                                                              const HostAddress& address,
                                                              const std::vector<int>& ports);
  ~ControlServer();

  int port() const;
  // Waits at most `seconds` until no process needs the service any more. Returns Coordinator::ended.
  bool WaitForEnd(double seconds);
  // Returns why the job failed. OK if it has not.
  absl::Status failure();

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shale
