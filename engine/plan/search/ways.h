// Ways: the same job with other settings, each compiled, timed and placed only as far as a comparison needs. Private to
// this package.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/variant.h"
#include "engine/plan/search/search.h"

namespace shale::internal {

// Returns the options that a search may decide, in the order in which it applies them.
const std::vector<const Option*>& SearchedOptions();
// Returns the position of an option in that list. REQUIRES: it is there.
size_t PositionOf(absl::string_view path);

// The settings that are chosen, by the position of their option. An option that is not in it stays as the job says.
using Choices = std::map<size_t, Settings>;

// The tensors that several units keep from forward to backward, by their names without the unit, such as "ffn.gate_up",
// each with its names in the order of the buffers.
using KeptTensors = std::map<std::string, std::vector<std::string>>;

struct Way {
  Variant variant;
  Choices choices;
  KeptTensors kept;
  double missing_bytes = 0;  // By which it exceeds the budget.
  // Whether bytes and seconds are those of a whole plan. Otherwise no plan of the way has less of either. The seconds
  // are 0 if it does not fit, unless they were asked for.
  bool exact = false;
  // Whether the seconds are those of a step that ran on paper. Otherwise they are less.
  bool timed = false;

  bool fits() const { return variant.status.ok() && variant.fits; }
  // Returns what ways are compared by: the smallest key is the best. Ways that fit come first, then the fastest, then
  // those with the least memory. The key of a way that is not exact is no larger than that of its plan.
  auto key() const {
    return std::make_tuple(!variant.status.ok(), missing_bytes, variant.cost.seconds, variant.cost.arena_bytes);
  }
};

// Returns whether `a` is better than `b`.
inline bool Better(const Way& a, const Way& b) { return a.key() < b.key(); }

// Makes ways, and keeps those that it has made. References to ways stay valid as long as it lives.
class Ways {
 public:
  Ways(const SearchQuery& query, const WorkLimits& limits);

  // Returns the job as it is written, planned in full.
  const Way& Own();
  // Returns a way that need not be exact. With `timed`, it has the seconds of a step on paper, even if it does not fit.
  const Way& Sketch(const Choices& choices, bool timed = false);
  // Returns the same way with the seconds of a step on paper, if it fits.
  const Way& Timed(const Way& way);
  // Returns the same way with its plan.
  const Way& Exact(const Way& way);

  // Returns the job with these overrides, which is checked only once.
  absl::StatusOr<const Job*> JobWithAll(const std::vector<Override>& overrides);
  // Returns all settings of an option for the job of a way. None if the search may not change it.
  std::vector<Settings> SettingsOf(const Way& way, size_t option);
  bool MayChange(size_t option) const;
  // Returns the overrides without those that change nothing.
  std::vector<Override> Minimal(std::vector<Override> overrides);

  // Whether the search must end: by a limit, or by the first error of a prediction.
  bool ended() const { return !error_.ok() || plans_ >= query_.most_plans || !limits_.Check().ok(); }
  const absl::Status& error() const { return error_; }
  const std::map<std::string, Way>& all() const { return tried_; }
  const Budget& budget() const { return budget_; }
  int plans() const { return plans_; }
  Drafter& drafter() { return drafter_; }

 private:
  absl::StatusOr<std::vector<Override>> OverridesOf(const Choices& choices);
  // Sets what a draft of the way says.
  void Take(const Draft& draft, Way& way);
  // Sets the seconds.
  void Time(Draft& draft, Way& way);
  // Sets seconds that are no more than these. REQUIRES: the query has no function for them.
  void TimeRoughly(const Draft& draft, Way& way);
  // Places a sketch of the way.
  void Place(Draft sketch, Way& way, bool timed = false);

  const SearchQuery& query_;
  const WorkLimits& limits_;
  Drafter drafter_;
  std::map<std::string, Way> tried_;  // By their overrides, as is jobs_.
  std::map<std::string, absl::StatusOr<Job>> jobs_;
  // The way that was sketched last, with its draft: the one that is most often placed.
  const Way* last_ = nullptr;
  std::optional<Draft> last_draft_;
  Budget budget_;
  absl::Status error_;
  int plans_ = 0;
};

}  // namespace shale::internal
