#include <chrono>

#include "engine/api/events.h"

namespace shale {

double UnixSecondsNow() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace shale
