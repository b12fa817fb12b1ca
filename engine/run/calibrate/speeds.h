// What a device reaches in ops that are measured by themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/run/runtime/backend.h"

namespace shale {

// Returns the bytes that one rank reads and writes in a second when it copies far more than its caches hold.
absl::StatusOr<double> CopyBytesPerSecond(const Backend& backend);

// Returns the bytes that this machine writes in a second to a file in `folder`, past the system's cache, as checkpoints
// are written. Writes a quarter of a GiB and removes it. Returns the error of the file system.
absl::StatusOr<double> WriteBytesPerSecond(const std::string& folder);

// How long a matmul and a copy take now.
struct ProbedSpeed {
  double matmul_seconds = 0, copy_seconds = 0;
};
// Returns the mean of each. REQUIRES: they are not empty.
ProbedSpeed MeanOf(const std::vector<ProbedSpeed>& speeds);

// Probes how fast a machine is at the moment, in a few hundredths of a second. The speed of many machines changes from
// one second to the next; what was measured in different minutes is compared by it. Used by one thread.
class SpeedProbe {
 public:
  static absl::StatusOr<std::unique_ptr<SpeedProbe>> Create(const Backend& backend);
  ~SpeedProbe();
  absl::StatusOr<ProbedSpeed> Probe();

 private:
  struct Parts;
  explicit SpeedProbe(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace shale
