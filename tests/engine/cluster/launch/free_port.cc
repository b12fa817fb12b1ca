#include "tests/engine/cluster/launch/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/check.h"

namespace shale::testing {

int FreePort() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  SHALE_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SHALE_CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(listener);
  return ntohs(address.sin_port);
}

}  // namespace shale::testing
