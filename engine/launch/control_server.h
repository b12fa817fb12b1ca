// ControlServer: the control plane's service in process 0.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/launch/coordinator.h"
#include "engine/launch/host_address.h"
#include "engine/launch/tls.h"

namespace shale {

// Serves until it is destroyed. Its calls are thread-safe. Uses threads of gRPC and one of its own.
class ControlServer {
 public:
  // Listens on the first port of `ports` that is free (0: any free port), on this address alone. Callers without a
  // certificate that the authority of `tls` accepts, if it is set, and callers without the token are turned away before
  // anything of theirs is read. Returns the errors of CheckCanListen for the last port.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const CoordinatorOptions& options,
                                                              const std::optional<TlsIdentity>& tls, std::string token,
                                                              const HostAddress& address,
                                                              const std::vector<int>& ports);
  ~ControlServer();

  int port() const;
  // Waits until nobody needs the service any more (Coordinator::ended), at most this long. Returns whether that is so.
  bool WaitForEnd(double seconds);
  // Returns why the job failed. OK if it has not.
  absl::Status failure();

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shale
