// Ways: the same job with other settings, each compiled, timed and placed only as far as a comparison needs. Private to
// this package.
//
// DraftsAhead: makes the drafts of ways that will be wanted next, while the search looks at those before them.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
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

// Returns the position of an option in SearchedOptions. REQUIRES: it is there.
size_t PositionOf(absl::string_view path);
// Returns whether the settings of an option are faster the more memory they need.
inline bool FirstThatFits(size_t option) { return (SearchedOptions()[option]->flags & kFasterWithMemory) != 0; }

// Returns whether the jobs are equal. One that shards over all its ranks is the same whether it says so or not.
bool AreAlike(Job a, Job b);

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

class Ways;
// Returns SearchResult::changing.
std::vector<Variant> ChangingTraining(const Variant& best, Ways& ways);

// Returns whether `a` is better than `b`.
inline bool Better(const Way& a, const Way& b) { return a.key() < b.key(); }

// A search by halves for the first of some ways that fits. The way before the first may be known not to fit, and the
// one after the last is taken to fit.
struct Halves {
  int64_t too_large = 0, fits = 0;
  int64_t round = 0;  // 1: the middle of an even number of ways is the later one.
  bool open() const { return fits - too_large > 1; }
  int64_t middle() const { return too_large + (fits - too_large + round) / 2; }
  void Go(bool middle_fits) { (middle_fits ? fits : too_large) = middle(); }
};

// How far a draft is made ahead.
enum class Depth {
  kSketched,
  kTimedIfFits,  // With the seconds of a step on paper, if it fits.
  kTimed,        // With these seconds, even if it does not fit.
  kPlaced        // The same as kTimedIfFits, and then a plan, with the seconds of that.
};

// A draft, and what a way asks of it.
struct MadeDraft {
  absl::StatusOr<Draft> draft = absl::UnknownError("not made");
  KeptTensors kept;
  double least_seconds = 0;             // Drafter::LeastSecondsOf, of a sketch that fits.
  std::optional<StepTime> sketch_time;  // Of a sketch, if that was timed.
  bool made = false, placed = false;    // It was sketched, and placed.
};

// Makes drafts before they are wanted, on other threads and on that of the caller while it waits, and keeps some that
// may be wanted again. What they say depends on the settings alone; whether they are timed or placed already depends on
// what the other threads came to. Its functions are for one thread.
class DraftsAhead {
 public:
  struct Wanted {
    std::string way;           // Names the settings.
    const Job* job = nullptr;  // Valid as long as the object.
    Depth depth = Depth::kSketched;
  };
  // Makes what a draft lacks to this depth.
  using Make = std::function<void(const Job& job, Depth depth, MadeDraft& made)>;

  // Makes drafts on so many threads beside that of the caller. Any thread may call `make`.
  DraftsAhead(int64_t threads, Make make) : most_threads_(threads), make_(std::move(make)) {}
  // Waits for the drafts that are being made.
  ~DraftsAhead();

  bool has_threads() const { return most_threads_ > 0; }
  // Begins to make these drafts, in this order. Those of an earlier call that nobody has begun are not made any more.
  void Prepare(std::vector<Wanted> wanted);
  // Returns the draft, made to this depth or further. While another thread makes it, makes others of the queue.
  MadeDraft Take(const Wanted& wanted);
  // Keeps a draft for a later Take. Forgets those that were kept longest if they are too large together.
  void Keep(const std::string& way, MadeDraft made);

 private:
  // The most instructions of the drafts that are kept. They take some 150 MB.
  static constexpr int64_t kMostInstructions = int64_t{1} << 16;

  struct Ready {
    std::string way;
    MadeDraft made;
    bool is_ahead = false;  // It was prepared, and nobody has taken it yet.
  };
  using Drafts = std::list<Ready>;

  void StartThreads();
  // Makes drafts as long as the object lives.
  void Help();
  // Whether there is a draft to make, and room for it. REQUIRES: mutex_ is held.
  bool MayMake() const { return !queue_.empty() && Instructions(/*only_ahead=*/true) < kMostInstructions / 2; }
  // Makes the first draft of the queue. Lets go of `lock`, which holds mutex_, meanwhile. REQUIRES: MayMake.
  void MakeNext(std::unique_lock<std::mutex>& lock);
  // Returns the draft if it is ready, which it then is no more, else an empty one. REQUIRES: mutex_ is held, as below.
  MadeDraft TakeReady(const std::string& way);
  // Adds a draft to those that are ready. Returns those that it forgets: those that were kept longest, but none that is
  // ahead.
  Drafts AddReady(Ready ready);
  // Returns the instructions of drafts that are ready, of all or of those that are ahead.
  int64_t Instructions(bool only_ahead) const;

  const int64_t most_threads_;
  const Make make_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;                 // Guards what follows.
  std::condition_variable changed_;  // Whenever a draft is wanted or ready, and at the end.
  std::deque<Wanted> queue_;
  std::set<std::string> running_;  // What is being made ahead.
  Drafts ready_;                   // The latest first.
  bool ends_ = false;
};

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

  // Returns the accumulation that the planner takes with these overrides. The job does not count as tried.
  absl::StatusOr<Accumulation> AccumulationWith(const std::vector<Override>& overrides);

  // Whether other threads make drafts.
  bool has_threads() const { return ahead_.has_threads(); }
  // Returns the plans of the job with each of these overrides, which may set fields that the search does not decide.
  // Other threads make some of them. They do not count as tried.
  std::vector<Variant> PlannedWith(const std::vector<std::vector<Override>>& all);

  // Begins to make the drafts of these ways, which may be asked for, in this order on other threads. Changes no result.
  void Prepare(const std::vector<std::pair<Choices, Depth>>& all);
  void Prepare(const std::vector<Choices>& all, Depth depth);
  // Returns whether a way fits, as Sketch says. The way does not count as tried.
  bool SketchFits(const Choices& choices);

  // Returns the job with these overrides, which is checked only once. Equal jobs are one.
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

 private:
  // What was asked of a way.
  enum Stage { kSketch, kTimedSketch, kTimed, kExact, kStages };
  // A job, and what is known of the ways that are this job. They differ in the settings that they name.
  struct KnownJob {
    std::string name;  // The overrides that gave it first.
    Job job;
    std::array<std::optional<Way>, kStages> ways;  // As they were then.

    const Way* latest() const {
      for (size_t stage = kStages; stage-- > 0;) {
        if (ways[stage]) return &*ways[stage];
      }
      return nullptr;
    }
  };

  absl::StatusOr<KnownJob*> KnownJobWith(const std::vector<Override>& overrides);
  // Returns the job of a way that was made.
  KnownJob& KnownJobOf(const Way& way);
  absl::StatusOr<std::vector<Override>> OverridesOf(const Choices& choices);
  // Makes what a draft lacks to this depth. Any thread may call it, as the function below.
  void Make(const Job& job, Depth depth, MadeDraft& made);
  void Place(const Job& job, MadeDraft& made);
  // Takes the draft of a job, which other threads may have made to this depth, and places it.
  MadeDraft TakePlaced(const KnownJob& known, Depth depth);
  // Sets what a draft of the way says.
  void Set(const MadeDraft& made, Way& way);
  // Sets the seconds.
  void Time(const Job& job, Draft& draft, Way& way);

  const SearchQuery& query_;
  const WorkLimits& limits_;
  Drafter drafter_;
  std::map<std::string, Way> tried_;  // By their overrides, as is jobs_.
  std::map<std::string, absl::StatusOr<KnownJob*>> jobs_;
  std::list<KnownJob> known_jobs_;
  Budget budget_;
  absl::Status error_;
  int plans_ = 0;
  DraftsAhead ahead_;  // Last, because its threads use the others.
};

}  // namespace shale::internal
