// Seconds of what goes over links, from the links of a machine profile: used for what was never measured.
#pragma once

#include <cstdint>

#include "engine/plan/time/work.h"
#include "proto/machine.pb.h"

namespace shale {

// Returns `value` if it is positive and finite, otherwise `otherwise`.
double PositiveOr(double value, double otherwise);

// What a collective of ranks on GPUs takes of each kind of link.
struct CollectiveTime {
  double device_seconds = 0;  // While the links between the GPUs of a host carry its bytes.
  double host_seconds = 0;    // While those between hosts do.
  double latency_seconds = 0;
  double seconds() const;
};

// Returns the time of a collective whose ranks are GPUs, `ranks_on_host` of them on each host. It goes around rings.
// The ranks of a group that share a host send over all their links to other hosts at once, each a part of the vector.
// An all-reduce takes a tree in place of a ring if that has less latency. In an AllToAll each rank sends to all others
// at once, so each of its bytes crosses one link, and no rank adds up what it passes on.
CollectiveTime CollectiveTimeOf(const Work& work, const proto::MachineProfile& profile, int64_t ranks_on_host);
inline double CollectiveSecondsOf(const Work& work, const proto::MachineProfile& profile, int64_t ranks_on_host) {
  return CollectiveTimeOf(work, profile, ranks_on_host).seconds();
}

// Returns the seconds of a copy between a GPU and its host's memory.
double HostCopySeconds(double bytes, const proto::MachineProfile& profile);

}  // namespace shale
