// Jobs that make planning work as hard as a job of its length can (engine/api/plan.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shale {

struct HostileJob {
  std::string name;
  std::string text;
};

// Returns jobs whose programs are estimated at no more than this many instructions, and nearly that many.
std::vector<HostileJob> HostileJobs(int64_t instructions);

}  // namespace shale
