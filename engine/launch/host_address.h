// Names and numbers of hosts, and whether a port is free.
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

// Checks that a program may listen on this address of this machine and port now. Returns AlreadyExists if another one
// does, and FailedPrecondition if the address is none of this machine.
absl::Status CheckCanListen(const HostAddress& address, int port);

// Returns the number of this machine's address from which it reaches a host.
absl::StatusOr<std::string> AddressTowards(const HostAddress& host, int port);

// Returns the name of this host.
std::string ThisHost();

}  // namespace shale
