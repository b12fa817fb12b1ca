// Profiles of machines on which the steps of small jobs were measured.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/plan/planner/job_plan.h"
#include "engine/plan/time/work.h"
#include "proto/machine.pb.h"
#include "tests/engine/plan/planner/plans.h"
#include "tests/engine/plan/time/visit_works.h"

namespace shale {

// Returns the profile of a machine on which all works of these plans were measured, between threads and between
// processes.
inline proto::MachineProfile MeasuredFor(const std::vector<JobPlan>& plans) {
  proto::MachineProfile profile;
  profile.set_name("small");
  profile.set_device("CPU");
  std::set<std::string> measured;
  for (const JobPlan& plan : plans) {
    const Mesh& mesh = plan.options.mesh;
    VisitWorks(plan.train.step.program, mesh, [&](const Work& work, double) {
      if (!measured.insert(WorkText(work)).second) return;
      proto::MeasuredWork& added = *profile.add_works();
      added.set_kind(work.kind);
      for (const double size : work.sizes) added.add_sizes(size);
      added.set_flops(work.flops);
      added.set_bytes(work.bytes());
      added.set_seconds(1e-6 + 1e-9 * (work.flops + work.bytes() + work.sent_bytes));
      added.set_ranks_on_host(mesh.ranks());
      if (work.work_class != WorkClass::kCollective) return;
      proto::MeasuredWork between = added;
      between.set_kind(KindBetweenProcesses(work.kind));
      *profile.add_works() = std::move(between);
    });
  }
  return profile;
}

// Returns the machine of small jobs with this profile.
inline Machine MachineWith(const proto::MachineProfile& profile) {
  Machine machine = MachineOf();
  machine.profile = std::make_shared<const proto::MachineProfile>(profile);
  return machine;
}

}  // namespace shale
