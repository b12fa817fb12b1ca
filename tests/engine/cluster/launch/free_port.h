// Ports for tests.
#pragma once

namespace shale::testing {

// Returns a port of the loopback address that nobody listens on at the moment.
int FreePort();

}  // namespace shale::testing
