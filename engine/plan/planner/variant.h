// Variant: the same job with other settings, and what it then costs. Refusal: why a job does not fit, and the variants
// that do.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/config/job.h"

namespace shale {

// A setting of one field, as --set takes it: path=value. An empty value sets the field back to its default.
struct Override {
  std::string path;
  std::string value;

  std::string text() const { return path + "=" + value; }
  bool operator==(const Override&) const = default;
};

// Floating point operations of one rank in one step, by phase. The gradients of the loss and the head count as
// backward, although they are computed together with the loss.
struct FlopsSummary {
  double forward = 0, recompute = 0, backward = 0;
  double total() const { return forward + recompute + backward; }
};

// Returns the settings with `separator` between them: "a=1, b=2".
std::string SettingsText(const std::vector<Override>& settings, absl::string_view separator);

// The seconds of a step are covered if at least this share of those of its streams is measured or interpolated. Only
// then are runs compared with them, and settings chosen by them.
inline constexpr double kCoveredShare = 0.9;

// What one rank needs for a job.
struct Cost {
  int64_t arena_bytes = 0;  // The largest peak of training, evaluation and generation.
  int64_t host_bytes = 0;   // Offloaded to host memory.
  int64_t sent_bytes = 0;   // Sent in one step (CommunicationSummary::sent_bytes).
  FlopsSummary flops;       // Of one step of training.
  double seconds = 0;       // Of one step of training, predicted. 0: not known (Machine::profile).
  double known = 0;         // The share of the streams' seconds that was measured or is interpolated.

  // Whether the seconds are covered. Otherwise they are an estimate.
  bool covered() const { return seconds > 0 && known >= kCoveredShare; }
};

// Returns "9.83 GiB", or "9.83 GiB + 11.8 GiB of host memory".
std::string CostText(const Cost& cost);

// Returns how long a step of `cost` takes as a multiple of one of `than`: "1.24 x the time", or "1.24 x the time,
// estimated" if one of them is an estimate. Empty if the seconds of one of them are not known.
std::string TimesText(const Cost& cost, const Cost& than);

// Says by how much a budget is too small for a cost: "needs 31.2 GiB per rank, budget 24.0 GiB (80 % of ...;
// memory.budget_bytes sets another), 7.20 GiB too little", the same for host memory, or both. Empty if the budget holds
// the cost.
std::string MissingText(const Cost& cost, const Budget& budget);

// A function that returns the job with other settings, checked as the job itself was.
using JobWith = std::function<absl::StatusOr<Job>(const std::vector<Override>& overrides)>;

// Settings that change a job, and what the job costs with them, as found by compiling and planning it.
struct Variant {
  std::vector<Override> overrides;  // To be applied in this order.
  std::string caveat;               // What else changes: "the CPU updates". Empty: the training computes the same.
  absl::Status status;              // Not OK: the job cannot have the settings, or cannot be planned with them.
  // What follows is there if `status` is OK.
  Accumulation accumulation = Accumulation::kAuto;  // The one that was planned.
  Cost cost;
  bool fits = false;  // Whether the budget holds the cost.
};

struct Refusal {
  // What one rank needs at least, with the job's own settings.
  Cost cost;
  Budget budget;
  // Changes with each of which alone the job fits. They stand in the order of the table of options, or the fastest
  // first if the seconds of all are covered.
  std::vector<Variant> ways_out;
  // Whether no single change suffices. `ways_out` then has at most one element: all changes that save memory.
  bool only_together = false;
  // All changes that save memory, if the job does not even fit with these.
  std::optional<Variant> nearest;
  // Whether the search for ways out reached its time limit. There may then be others.
  bool search_ended_early = false;
};

// Returns the refusal in one line: "needs 31.2 GiB per rank, budget 24.0 GiB, 7.20 GiB too little; fits with
// activation_checkpointing.preset=BLOCK (22.1 GiB) or sharding.accumulation=LAYERED (23.0 GiB)". If seconds are known,
// says them too, against those of the job as it is: "BLOCK (22.1 GiB, 1.24 x the time)".
std::string RefusalText(const Refusal& refusal);

}  // namespace shale
