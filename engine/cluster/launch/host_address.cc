#include "engine/cluster/launch/host_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, const char* port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port, &hints, &found);
  if (error == 0) return Addresses(found, &freeaddrinfo);
  return absl::NotFoundError(
      absl::StrCat("the host name ", Quoted(host), " does not resolve to an address: ", gai_strerror(error)));
}

}  // namespace

std::string HostAddress::WithPort(int port) const {
  return ipv6 ? absl::StrCat("[", number, "]:", port) : absl::StrCat(number, ":", port);
}

std::string HostAddress::Target(int port) const { return absl::StrCat(ipv6 ? "ipv6:" : "ipv4:", WithPort(port)); }

absl::StatusOr<HostAddress> ResolveHost(const std::string& host) {
  SHALE_ASSIGN_OR_RETURN(const Addresses found, Resolve(host, nullptr, 0));
  char number[NI_MAXHOST] = {};
  const int error = getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof number, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) return absl::NotFoundError(absl::StrCat("no number for ", Quoted(host), ": ", gai_strerror(error)));
  return HostAddress{.number = number, .ipv6 = found->ai_family == AF_INET6};
}

absl::Status CheckCanListen(const HostAddress& address, int port) {
  SHALE_ASSIGN_OR_RETURN(const Addresses found,
                         Resolve(address.number, absl::StrCat(port).c_str(), AI_NUMERICHOST | AI_NUMERICSERV));
  const int listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;  // As gRPC sets it: connections that a former process left behind do not keep the port.
  int error = listener < 0 ? errno : 0;
  if (error == 0 && (setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
                     bind(listener, found->ai_addr, found->ai_addrlen) != 0 || listen(listener, 1) != 0)) {
    error = errno;
  }
  if (listener >= 0) close(listener);
  if (error == 0) return absl::OkStatus();
  const std::string what = absl::StrCat("process 0 cannot listen on ", address.WithPort(port), ": ");
  if (error == EADDRINUSE) {
    return absl::AlreadyExistsError(absl::StrCat(what, "another program does; choose another port (MASTER_PORT)"));
  }
  if (error == EADDRNOTAVAIL) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, "this is no address of this host (", ThisHost(),
                     "); give all processes the address of the host on which process 0 runs (MASTER_ADDR)"));
  }
  return absl::FailedPreconditionError(absl::StrCat(what, std::strerror(error)));
}

absl::StatusOr<std::string> AddressTowards(const HostAddress& host, int port) {
  SHALE_ASSIGN_OR_RETURN(const Addresses found,
                         Resolve(host.number, absl::StrCat(port).c_str(), AI_NUMERICHOST | AI_NUMERICSERV));
  // Connecting a socket of datagrams sends nothing, but makes the system choose this side's address.
  const int datagrams = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage mine = {};
  socklen_t size = sizeof mine;
  const bool chosen = datagrams >= 0 && connect(datagrams, found->ai_addr, found->ai_addrlen) == 0 &&
                      getsockname(datagrams, reinterpret_cast<sockaddr*>(&mine), &size) == 0;
  const int error = errno;
  if (datagrams >= 0) close(datagrams);
  char number[NI_MAXHOST] = {};
  if (!chosen ||
      getnameinfo(reinterpret_cast<sockaddr*>(&mine), size, number, sizeof number, nullptr, 0, NI_NUMERICHOST) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no address of this host reaches ", host.number, ": ", std::strerror(error)));
  }
  return std::string(number);
}

std::string ThisHost() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

}  // namespace shale
