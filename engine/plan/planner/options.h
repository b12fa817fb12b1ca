// The table of options: settings that change how much memory a job needs, or how long its step takes. Refusals, --fit,
// --search, runtime.search and --explain all ask this table, so a new option is one row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/variant.h"

namespace shale {

// Settings that belong together. The first is the purpose, and the others are what it needs.
using Settings = std::vector<Override>;
// Values of one field, as --set takes them.
using Values = std::vector<std::string>;

// What the settings of options are for.
enum class OptionUse {
  kAlone,            // Each option by itself. With the other uses, all options are set together:
  kInArena,          //   with everything in the arena;
  kInHostMemory,     //   with activations and moments in host memory;
  kUpdatesOnTheHost  //   with activations and moments in host memory, and updates on the host.
};

struct OptionQuery {
  // The job, with a valid value in each field. If options are set together, it has those that were set before.
  const Job& job;
  bool has_host_ops = false;  // Whether this build can update on the host.
  OptionUse use = OptionUse::kAlone;
};

// The range of a field of whole numbers that --fit searches. `best` and `worst` are its ends. `best` is the value that
// one would take if memory did not matter: the largest, but for ranks the smallest.
struct FitRange {
  int64_t start = 1;  // Where the search begins, between the two.
  int64_t best = 1, worst = 1;
  int64_t hint = 0;  // A value to try if none from `start` to `worst` was found to fit. 0: none.
  absl::string_view last = "there are no better values";  // Why nothing is better than `best` (Fit::last).
};

// Which of the settings that fit is taken: the first, or the one that costs least.
enum class Cheapest { kFirst, kLeastRecomputed, kLeastSent };

// What else is true of an option; may be combined.
enum OptionFlags : int {
  kNoFlags = 0,
  kTogether = 1,       // If no single change suffices, a refusal sets these together, each to the last of its settings.
  kHasOwnSection = 2,  // A section of --explain compares it. All others are listed in the last section.
  // Of two of its settings, the one that needs more memory is never slower, so that --search takes the first that fits.
  kFasterWithMemory = 4,
  kChangesTraining = 8  // It changes what is trained. --search lists it beside its choice, and never takes it.
};

struct Option {
  absl::string_view path;  // The field that it sets, or that stands for the fields that it sets.
  int flags = kNoFlags;
  // Returns the values of the field to try for a job, those that change it least first. Returns none where the option
  // does not apply or would change nothing. If this and `settings` are null, refusals and comparisons leave the option
  // out.
  Values (*values)(const OptionQuery& query) = nullptr;
  // In place of `values`, for an option that may set other fields too.
  std::vector<Settings> (*settings)(const OptionQuery& query) = nullptr;
  // A field that a job must not set beside some of these settings, not even to its default. ThatLoad then clears it.
  // Empty: none.
  absl::string_view apart_from = "";
  absl::string_view caveat = "";  // What it may cost beside memory and time (Variant::caveat).
  Cheapest cheapest = Cheapest::kFirst;
  FitRange (*range)(const Job& job) = nullptr;  // Null: --fit does not search it.
  // Returns the settings among which a search chooses: --search, and a run whose job leaves the field to it
  // (runtime.search). Those that need the most memory come first, accumulations in the order of the enum. They change
  // only how sums are rounded, and with an update in backward that a unit whose gradient is not finite is skipped
  // alone. Returns none where the option does not apply. In each Settings the first override names the choice, and
  // those after it may depend on the job. Null: a search leaves the option as it is.
  std::vector<Settings> (*all)(const Job& job) = nullptr;
  // --search decides options in ascending order, because `all` may depend on what was decided before.
  int search_order = 0;

  // Returns what `values` or `settings` return, as settings.
  std::vector<Settings> SettingsFor(const OptionQuery& query) const;
  // Returns the settings. If the job loads with them only without the field `apart_from`, also leaves that out.
  Settings ThatLoad(const JobWith& job_with, Settings settings) const;
};

// Returns the table. Of two rows with the same path, a refusal asks the second only if no setting of the first fits.
absl::Span<const Option> Options();

// Returns the options that a search may decide (Option::all), in the order in which it decides them.
const std::vector<const Option*>& SearchedOptions();
// Returns the paths of these options: the fields that --search and runtime.search may name.
std::vector<std::string> SearchFields();
// Returns OK if `path` is one of them, otherwise InvalidArgument with their list.
absl::Status CheckSearchField(absl::string_view path);
// Returns InvalidArgument, with the list, if job.runtime.search names a field that is none of them.
absl::Status CheckSearchedFields(const Job& job);
// Returns the paths of the fields that a job leaves to a search (runtime.search), in the order of SearchFields.
std::vector<std::string> SearchedFields(const Job& job);

// Returns the settings of activation checkpointing that apply `preset` and these fields of the same message, and leave
// out all its other fields.
Settings CheckpointingOf(absl::string_view preset, const std::vector<Override>& fields = {});

// Returns the settings that give a job this strategy, and leave out what other strategies do not have: fields about
// gathering parameters.
Settings StrategyOf(Strategy strategy, const Job& job);

}  // namespace shale
