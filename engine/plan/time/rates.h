// Rates: how long a work takes by itself, from the profile of a machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
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
};

// Copies what it needs from the profile. Any thread may call Of.
class Rates {
 public:
  // `ranks_on_host` ranks of the job share a host.
  Rates(const proto::MachineProfile& profile, int64_t ranks_on_host);

  WorkTime Of(const Work& work) const;

  // A work that was measured, once or several times.
  struct Point {
    std::vector<double> sizes;  // log2 of Work::sizes.
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
  // Returns the points of the work's kind, or, if there are none, those of all kinds with the same first two words.
  Curve CurveOf(const Work& work) const;
  WorkTime Estimate(const Work& work) const;
  double EstimatedSeconds(const Work& work) const;
  const proto::KindRate* RateOf(const Work& work) const;

  proto::MachineProfile profile_;  // Without works.
  int64_t ranks_on_host_;
  std::map<std::string, std::vector<Point>, std::less<>> points_;  // By kind.
};

}  // namespace shale
