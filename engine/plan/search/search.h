// Finds the fastest way to run a job that fits its budget, by predicted seconds: among the settings that change how a
// step runs and not what it trains.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/program/work_limits.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/variant.h"

namespace shale {

// Returns the predicted seconds of one step of `draft`, the plan of `job`. The waits of its training program are
// derived. The search takes them for known.
using DraftSeconds = std::function<absl::StatusOr<double>(const Job& job, const Draft& draft)>;

struct SearchQuery {
  const Job& job;
  const Machine& machine;
  std::vector<std::string> fields = {};  // That may change. Empty: all of SearchFields.
  JobWith job_with = nullptr;            // As in Drafter. Empty: sets the fields of `job`.
  DraftSeconds seconds = nullptr;        // Empty: predicted for the machine (Machine::profile).
  int most_plans = 400;                  // After so many ways the search ends with the best one.
  int most_threads = 8;                  // That plan ways side by side, the caller's included. Changes no result.
  bool only_best = false;                // Leaves SearchResult::front and SearchResult::changing empty.
};

// A field that the search decided.
struct SearchChoice {
  std::string path;
  std::vector<Override> taken;  // What differs from the job.
  // The fastest other setting of this field that fits, with all other choices as they are. Its overrides are this
  // setting alone. Absent if none is known to fit.
  std::optional<Variant> runner_up;
  // Other settings of this field, with all other choices as they are: those that do not fit, those that the job rules
  // out, and those that were not tried, because the search ended.
  std::vector<Settings> too_large, ruled_out, not_tried;
};

struct SearchResult {
  Variant best;  // Its overrides are those that change the job.
  // The job as it is written, whether it fits or not.
  Variant own;
  std::vector<SearchChoice> choices;  // One for each field that was searched, in the order of SearchFields.
  // At most 12 of the ways that were compared and that no other of them beats in both seconds and bytes of the arena:
  // the fastest first. Each is the fastest of all with so many bytes.
  std::vector<Variant> front;
  // At most five settings of the table of options that change what is trained, such as moments in 8 bits: the fastest
  // first. Each variant is the best way with these settings added. Its overrides are these settings alone, and its
  // caveat says what they change. The search takes none of them.
  std::vector<Variant> changing;
  Budget budget;
  int plans = 0;             // Ways that were compared.
  bool ended_early = false;  // Whether most_plans or a limit of the work ended the search.
};

// Returns the fastest job that fits. The search is deterministic: the same query gives the same result on every
// machine, as long as no time limit ends it.
//
// It begins at the job, or, if that does not fit, at the settings with the least memory. It takes the best strategy,
// and then changes one field after the other, each to its best value, until no change gains more than a thousandth.
// Micro-batch and activation checkpointing are changed together, because each makes room for the other. At last it
// tries checkpointing in fewer blocks, and recomputes tensor by tensor: those first that cost the fewest seconds for
// each byte they save, in as many blocks as must be.
//
// A way is the job with some settings. Of each it first computes bounds: the least bytes that any plan of its program
// needs, and the seconds for which its busiest stream works. Where these leave it open, it runs a step on paper in
// which no buffers share bytes. It plans only ways that may be the best by all of this. All numbers of a result are
// those of plans. Other threads make the programs of ways that come next (SearchQuery::most_threads); `job_with` and
// `seconds` are called by this thread alone.
//
// Errors:
//   FailedPrecondition The query has no seconds, and its machine no profile.
//   InvalidArgument    A field that cannot be searched; the errors of Drafter::Compile for the job.
//   ResourceExhausted  Nothing fits. The message says what the nearest of the tried ways lacks.
//   Errors of `query.seconds`, and of `limits` if they end the search before it has found anything that fits.
absl::StatusOr<SearchResult> FindFastest(const SearchQuery& query, const WorkLimits& limits = {});

// Returns what the search found, and a row for each field that it decided. Ends in a newline.
std::string ChoicesText(const SearchResult& result);

// Returns the fastest way with what it changes and why, what the runner-up of each choice would take, the ways that
// need less memory, and the settings that change what is trained, as settings that --set takes. Ends in a newline.
std::string SearchText(const SearchResult& result);

// Returns ResolvedJobText of `job`, which is the job of `result.best`, with comments: what the search found, and at
// each field that it decided the same reason as in SearchText. Fields that the text leaves out have theirs at the top.
std::string SearchedJobText(const SearchResult& result, const Job& job);

}  // namespace shale
