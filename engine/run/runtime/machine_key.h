// The key by which the profile of this machine is found (engine/plan/time/profile.h).
#pragma once

#include <string>
#include <utility>

#include "engine/plan/time/profile.h"
#include "engine/run/runtime/backend.h"

namespace shale {

// Returns the key of the machine whose devices a backend creates.
inline MachineKey KeyOfDevices(const Backend& backend) {
  MachineKey key = KeyOfThisHost();
  if (std::string name = backend.device_name(); !name.empty()) {
    key.device = "CUDA";
    key.processor = std::move(name);
  }
  return key;
}

}  // namespace shale
