// Jobs that make planning work as hard as a job of the default length can (engine/planner/admission.h).
#pragma once

#include <string>
#include <vector>

namespace shale {

struct HostileJob {
  std::string name;
  std::string text;
};

std::vector<HostileJob> HostileJobs();

}  // namespace shale
