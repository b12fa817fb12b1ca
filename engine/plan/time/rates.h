// Rates: how long a work takes by itself, from the profile of a machine. Beside it, what it is made of: curves through
// works that were measured, and the links of the machine for what was never measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/time/work.h"
#include "proto/machine.pb.h"

namespace shale {

// How the seconds of a work are known, from best to worst.
enum class Knowledge : uint8_t {
  kMeasured,      // A work of this kind and these sizes was measured.
  kInterpolated,  // Works of this kind were measured, with smaller and larger sizes.
  kExtrapolated,  // Works of this kind were measured, but all with smaller or all with larger sizes.
  kEstimated,     // By works of like kinds, by a rate of the kind, or by peaks.
};
inline constexpr int kKnowledges = static_cast<int>(Knowledge::kEstimated) + 1;
absl::string_view ToString(Knowledge knowledge);

struct WorkTime {
  double seconds = 0;  // Finite and positive, whatever the profile says.
  Knowledge how = Knowledge::kEstimated;
  double spread = 0;  // The seconds lie within this share of `seconds`, more or less.
  // The seconds were measured while other ranks of the host ran the same step, so they have in them what streams and
  // ranks take from each other.
  bool shared = false;
  // If ranks on CPUs of several hosts meet: how long of `seconds` they copy, and the link of a host is busy. They may
  // do both at once.
  double copy_seconds = 0, link_seconds = 0;
};

// Where the ranks of a job run. Processes hold ranks that follow one another (RanksOfProcess in
// engine/cluster/launch/joined_processes.h), and hosts such processes, as evenly as that goes.
struct RankLayout {
  int64_t ranks_on_host = 1;  // The most that a host has.
  // Count on CPUs only.
  int64_t ranks = 1;      // Of the job.
  int64_t processes = 1;  // On all hosts together.
};

// What the groups of a collective cross.
struct Crossing {
  bool processes = false, hosts = false;  // Whether a group has ranks in several of them.
  // What the host that sends most sends to others over its link, of all its groups: in full vectors of one rank, if the
  // groups gather and if they reduce. Ranks in several processes send to one another directly
  // (sharding/comm/gloo/gloo.h). A rank sends its shard once to each other process of its group; to reduce, it sends
  // each other rank the part that this one sums.
  double gathered = 0, reduced = 0;
};
// The ranks of a group are `group_stride` apart, as those of Work.
Crossing CrossingOf(int64_t group_ranks, int64_t group_stride, const RankLayout& layout);

// Copies what it needs from the profile. Any thread may call Of.
class Rates {
 public:
  Rates(const proto::MachineProfile& profile, const RankLayout& layout);

  WorkTime Of(const Work& work) const;

  // A work that was measured, once or several times.
  struct Point {
    // log2 of each of Work::sizes, times how much the size counts for what is near: the rate of attention on a GPU
    // follows the width of its heads, and hardly their number and the tokens. All sizes of other works count alike.
    std::vector<double> coordinates;
    double flops = 0, bytes = 0;
    double log_seconds = 0;
    double spread = 0;
    double count = 0;
    bool shared = false;
  };

 private:
  struct Curve {
    std::vector<Point> points;
    bool exact = true;  // The points are of the kind that was asked for.
  };

  void Add(const proto::MeasuredWork& measured);
  // Return the time of a work of one rank, of ranks on GPUs, or of ranks on CPUs that are threads of one process, and
  // that of a collective between processes of one host with CPUs.
  WorkTime WithinProcess(const Work& work) const;
  WorkTime BetweenProcesses(const Work& work) const;
  WorkTime OfCurve(const Curve& curve, const Work& work) const;
  // Returns the points of the work's kind, or, if there are none, those of all like kinds, which have the same first
  // two words, or three if the second says whose kernels compute the op. If there are none of these either, and a CPU
  // multiplies fp8 matrices, which it widens to bf16: those of bf16.
  Curve CurveOf(const Work& work) const;
  WorkTime Estimate(const Work& work) const;
  double EstimatedSeconds(const Work& work) const;
  const proto::KindRate* RateOf(const Work& work) const;

  proto::MachineProfile profile_;  // Without works.
  const RankLayout layout_;
  std::map<std::string, std::vector<Point>, std::less<>> points_;  // By kind.
};

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

// Returns how long the link of the host that sends most is busy with a collective of ranks on CPUs. An all-reduce sends
// its parts and then their sums; an AllToAll tells how large the pieces are and then sends them.
double HostLinkSecondsOf(const Work& work, const proto::MachineProfile& profile, const Crossing& crossing);

// Returns the seconds of a copy between a GPU and its host's memory.
double HostCopySeconds(double bytes, const proto::MachineProfile& profile);

struct CurveValue {
  double seconds = 0;
  double spread = 0;
  bool is_inside = false;  // Each coordinate lies between some of the points.
};

// Returns the seconds of `work`, which has the coordinates `at`, by the points, near ones most. With
// arithmetic, the logarithm of the time for each FLOP is a linear function of the logarithms of the sizes, so that a
// law with any powers of the sizes comes out as it is. What moves bytes takes a latency and a time for each byte.
// REQUIRES: there are points, each with as many coordinates as the work.
CurveValue ValueOf(absl::Span<const Rates::Point> points, const Work& work, const std::vector<double>& at);

}  // namespace shale
