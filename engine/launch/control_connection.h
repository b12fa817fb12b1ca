// ControlConnection: the call by which a process attends the control plane's service.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "engine/launch/tls.h"
#include "proto/control.pb.h"

namespace shale {

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

}  // namespace shale
