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
