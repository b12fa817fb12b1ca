// Feeds the coordinator messages of strangers and members. The input is a sequence of frames: a byte that names the
// connection and the length of the message, in four bits each, then the message.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/cluster/launch/coordinator.h"
#include "kernels/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shale::Coordinator coordinator({.processes = 3, .facts = {{"job", "x"}}}, [](int64_t, shale::ToMember message) {
    SHALE_CHECK(message.what_case() != shale::ToMember::WHAT_NOT_SET);
  });
  for (size_t at = 0; at < size;) {
    const int connection = data[at] >> 4;
    size_t length = data[at] & 15;
    ++at;
    if (length == 15 && at < size) length = data[at++];  // Longer messages.
    length = std::min(length, size - at);
    shale::FromMember message;
    if (length == 0) {
      coordinator.Disconnected(connection);
    } else if (message.ParseFromArray(data + at, static_cast<int>(length))) {
      coordinator.Receive(connection, message);
    }
    at += length;
    coordinator.Poll();
  }
  for (int connection = 0; connection < 16; ++connection) coordinator.Disconnected(connection);
  return 0;
}
