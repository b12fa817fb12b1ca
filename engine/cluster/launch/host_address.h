// Resolves names of hosts, and checks whether a port is free.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

// A numeric address of a host.
struct HostAddress {
  std::string number;  // "10.0.0.1", "fe80::1".
  bool ipv6 = false;

  // Returns the address with a port: "10.0.0.1:80", "[fe80::1]:80". Servers of gRPC take it like this.
  std::string WithPort(int port) const;
  // Returns it as clients of gRPC take it without asking a resolver: "ipv4:10.0.0.1:80".
  std::string Target(int port) const;
};

// Returns the first address of a host's name or number. Returns NotFound if the name does not resolve. Blocks for as
// long as the machine's resolver does.
absl::StatusOr<HostAddress> ResolveHost(const std::string& host);

// Returns OK if this process can listen on the address and port now. Returns AlreadyExists if another program listens
// there, and FailedPrecondition if the address is not one of this machine.
absl::Status CheckCanListen(const HostAddress& address, int port);

// Returns the numeric address of this machine from which it would connect to `host`.
absl::StatusOr<std::string> AddressTowards(const HostAddress& host, int port);

// Returns the name of this host.
std::string ThisHost();

}  // namespace shale
