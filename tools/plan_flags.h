// The flags of plan.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/api/plan_text.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/planner/step_facts.h"
#include "proto/machine.pb.h"
#include "tools/command_line.h"

namespace shale {

inline constexpr absl::string_view kStandardOutput = "-";
inline constexpr absl::string_view kAllFields = "all";  // Of --search.

struct PlanFlags {
  std::string job;
  std::vector<std::string> set;
  int64_t ranks = 0;
  bool explain = false;
  bool timeline = false;
  bool dump_program = false;
  std::string json;
  std::string proto;
  std::string html;
  std::string trace;
  std::string memory_snapshot;
  std::string fit;
  std::string search;
  std::string searched_job;
  std::string machine;
  int64_t hosts = 0;
  int64_t processes = 0;
  double seconds = 300;
  // That `machine` names, or that of this machine if it has one.
  std::shared_ptr<const proto::MachineProfile> profile;
  std::string searched;  // JobPlan::searched, once `set` has what was decided.

  // A machine that was named comes before what the job says, and --set and --ranks come before it.
  std::vector<std::string> Overrides() const {
    std::vector<std::string> overrides;
    if (!machine.empty()) {
      overrides.push_back(absl::StrCat("runtime.device=", profile->device()));
      if (hosts > 0) overrides.push_back(absl::StrCat("sharding.ranks=", hosts * profile->devices_per_host()));
    }
    overrides.insert(overrides.end(), set.begin(), set.end());
    if (ranks > 0) overrides.push_back(absl::StrCat("sharding.ranks=", ranks));
    return overrides;
  }
  RankPlaces Places() const { return {.hosts = hosts, .processes = processes}; }
  WorkLimits Limits() const {
    using Clock = WorkLimits::Clock;
    return {.deadline =
                Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))};
  }
  bool json_is_printed() const { return json == kStandardOutput; }
  PlanDetail detail() const { return dump_program ? PlanDetail::kInstructions : PlanDetail::kBuffers; }
};

// Adds the flags to a command line, which sets `flags`.
void AddPlanFlags(CommandLine& line, PlanFlags& flags);

// Returns InvalidArgument for flags that would mix text into JSON, that ask for a plan together with --fit, for hosts
// of no machine, or for a trace without the page that shows it.
absl::Status CheckPlanFlags(const PlanFlags& flags);

}  // namespace shale
