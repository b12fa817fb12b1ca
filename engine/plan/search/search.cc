#include "engine/plan/search/search.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/compile/memory/plan.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/search/axes.h"
#include "engine/plan/time/prediction.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace internal {
namespace {

// How many of the fastest presets are tried in fewer blocks.
constexpr int kPresetsInFewerBlocks = 3;

// What is chosen on each axis, by its position. An axis that is not in it stays as the job says.
using Choices = std::map<size_t, Settings>;

using KeptTensors = std::map<std::string, std::vector<std::string>>;

struct Way {
  TimedVariant timed;
  Choices choices;
  KeptTensors kept;          // KeptBySeveralUnits.
  double missing_bytes = 0;  // By which it exceeds the budget.

  bool fits() const { return timed.variant.fits; }
  // The smallest is best: one that fits, then the fastest, then the one with the least memory.
  auto key() const {
    return std::make_tuple(!timed.variant.status.ok(), missing_bytes, timed.seconds, timed.variant.cost.arena_bytes);
  }
};

// Returns the tensors that several units keep from forward to backward, by their names without the unit, such as
// "ffn.gate_up", each with its names, in the order of the buffers.
KeptTensors KeptBySeveralUnits(const StepProgram& program) {
  KeptTensors all;
  const std::set<absl::string_view> units(program.units.begin(), program.units.end());
  for (const Buffer& buffer : program.buffers) {
    if (buffer.category != BufferCategory::kActivations) continue;
    for (size_t dot = buffer.name.find('.'); dot != std::string::npos; dot = buffer.name.find('.', dot + 1)) {
      if (!units.contains(absl::string_view(buffer.name).substr(0, dot))) continue;
      std::vector<std::string>& names = all[buffer.name.substr(dot + 1)];
      if (std::find(names.begin(), names.end(), buffer.name) == names.end()) names.push_back(buffer.name);
    }
  }
  std::erase_if(all, [](const auto& kept) { return kept.second.size() < 2; });
  return all;
}

class Searcher {
 public:
  Searcher(const SearchQuery& query, const WorkLimits& limits)
      : query_(query), limits_(limits), drafter_(query.job, query.machine, limits, query.job_with) {}

  absl::StatusOr<SearchResult> Run() {
    const Way own = Try({});
    SHALE_RETURN_IF_ERROR(error_);
    if (absl::IsInvalidArgument(own.timed.variant.status)) return own.timed.variant.status;
    Way best = std::min(Descend(own), Descend(Least()), Better);
    best = std::min(best, InFewerBlocks(best), Better);
    best = std::min(best, TensorByTensor(best), Better);
    best = Descend(best);
    SHALE_RETURN_IF_ERROR(error_);
    if (!best.fits()) return NothingFits(best);
    SearchResult result;
    result.own = own.timed;
    result.budget = budget_;
    for (size_t axis = 0; axis < Axes().size(); ++axis) {
      if (MayChange(axis)) result.choices.push_back(ChoiceOf(best, axis));
    }
    result.best = best.timed;
    result.front = Front();
    result.best.variant.overrides = Minimal(std::move(result.best.variant.overrides));
    for (TimedVariant& timed : result.front) timed.variant.overrides = Minimal(std::move(timed.variant.overrides));
    result.plans = plans_;
    result.ended_early = ended();
    return result;
  }

 private:
  static bool Better(const Way& a, const Way& b) { return a.key() < b.key(); }

  bool ended() { return !error_.ok() || plans_ >= query_.most_plans || !limits_.Check().ok(); }

  bool MayChange(size_t axis) const {
    const std::vector<std::string>& fields = query_.fields;
    return fields.empty() || std::find(fields.begin(), fields.end(), Axes()[axis].path) != fields.end();
  }

  // Returns the job with these overrides, which is checked only once. Valid as long as this object.
  absl::StatusOr<const Job*> JobWithAll(const std::vector<Override>& overrides) {
    const auto [it, added] = jobs_.try_emplace(SettingsText(overrides, ";"), absl::UnknownError(""));
    if (added) it->second = drafter_.With(overrides);
    SHALE_RETURN_IF_ERROR(it->second.status());
    return &*it->second;
  }

  // Returns the settings of all choices, without those of axes that do not apply with the choices before them.
  absl::StatusOr<std::vector<Override>> OverridesOf(const Choices& choices) {
    std::vector<Override> all;
    for (const auto& [axis, settings] : choices) {
      SHALE_ASSIGN_OR_RETURN(const Job* job, JobWithAll(all));
      if (Axes()[axis].settings(*job).empty()) continue;
      all.insert(all.end(), settings.begin(), settings.end());
    }
    return all;
  }

  // Plans the job with these choices, and predicts its seconds if it fits. The first error of the prediction ends the
  // search. What has been tried is not planned again.
  Way Try(const Choices& choices) {
    absl::StatusOr<std::vector<Override>> overrides = OverridesOf(choices);
    if (!overrides.ok()) return {.timed = {.variant = {.status = overrides.status()}}};
    const auto [it, added] = tried_.try_emplace(SettingsText(*overrides, ";"));
    Way& way = it->second;
    if (!added || (ended() && plans_ > 0)) {
      if (added) tried_.erase(it);
      if (added) return {.timed = {.variant = {.status = absl::DeadlineExceededError("the search ended")}}};
      return way;
    }
    ++plans_;
    way.choices = choices;
    way.timed.variant.overrides = *overrides;
    absl::StatusOr<Draft> draft = drafter_.Compile(*overrides);
    way.timed.variant.status = draft.status();
    if (draft.ok()) TakeDraft(*std::move(draft), way);
    return way;
  }

  void TakeDraft(Draft draft, Way& way) {
    Variant& variant = way.timed.variant;
    variant.accumulation = draft.options.accumulation;
    variant.cost = draft.cost;
    variant.fits = draft.fits;
    budget_ = draft.budget;
    way.missing_bytes = draft.budget.Missing(draft.cost.arena_bytes, draft.cost.host_bytes);
    way.kept = KeptBySeveralUnits(draft.train.step.program);
    DeriveWaits(draft.train.step.program, draft.train.memory);
    const absl::StatusOr<const Job*> job = JobWithAll(variant.overrides);
    SHALE_CHECK(job.ok()) << job.status();
    const absl::StatusOr<double> seconds = query_.seconds(**job, draft);
    if (!seconds.ok()) {
      error_ = seconds.status();
      return;
    }
    way.timed.seconds = *seconds;
  }

  Way With(const Way& way, size_t axis, const Settings& settings) {
    Choices choices = way.choices;
    choices[axis] = settings;
    return Try(choices);
  }

  std::vector<Settings> SettingsOf(const Way& way, size_t axis) {
    if (!MayChange(axis)) return {};
    const absl::StatusOr<const Job*> job = JobWithAll(way.timed.variant.overrides);
    return job.ok() ? Axes()[axis].settings(**job) : std::vector<Settings>();
  }

  // Returns the way with the setting of every axis that needs the least memory.
  Way Least() {
    Way way = Try({});
    for (size_t axis = 0; axis < Axes().size(); ++axis) {
      for (const Settings& settings : SettingsOf(way, axis)) {
        const Way tried = With(way, axis, settings);
        const auto bytes = [](const Way& w) {
          return std::make_pair(w.missing_bytes, w.timed.variant.cost.arena_bytes);
        };
        if (tried.timed.variant.status.ok() && bytes(tried) < bytes(way)) way = tried;
      }
    }
    return way;
  }

  // Changes the axes in turn, each to its best setting, until no change is better.
  Way Descend(Way way) {
    for (bool improved = true; improved && !ended();) {
      improved = false;
      const auto take = [&](const Way& better) {
        if (!Better(better, way)) return;
        way = better;
        improved = true;
      };
      take(BestMicroBatchAndCheckpointing(way));
      for (size_t axis = 0; axis < Axes().size(); ++axis) {
        for (const Settings& settings : SettingsOf(way, axis)) take(With(way, axis, settings));
      }
    }
    return way;
  }

  // Tries each checkpointing with the largest micro-batch that fits with it, and with the next smaller one.
  Way BestMicroBatchAndCheckpointing(const Way& way) {
    const std::vector<Settings> micro_batches = SettingsOf(way, kMicroBatchAxis);
    Way best = way;
    if (micro_batches.empty()) return best;
    for (const Settings& checkpointing : SettingsOf(way, kCheckpointingAxis)) {
      const auto with = [&](size_t micro_batch) {
        return With(With(way, kCheckpointingAxis, checkpointing), kMicroBatchAxis, micro_batches[micro_batch]);
      };
      size_t too_large = 0, fits = micro_batches.size();  // The bytes grow with the micro-batch, but for LAYERED.
      while (too_large < fits) {
        const size_t middle = (too_large + fits) / 2;
        if (with(middle).fits()) {
          fits = middle;
        } else {
          too_large = middle + 1;
        }
      }
      for (size_t i = fits; i < std::min(fits + 2, micro_batches.size()); ++i) best = std::min(best, with(i), Better);
    }
    return best;
  }

  // Applies the best presets to as few blocks as fit, with the micro-batch of `way` and with the next larger one.
  Way InFewerBlocks(const Way& way) {
    Way best = way;
    if (!MayChange(kCheckpointingAxis)) return best;
    for (const Way& base : {way, LargerMicroBatch(way)}) {
      std::vector<Way> presets;
      for (const Settings& settings : SettingsOf(base, kCheckpointingAxis)) {
        Way tried = With(base, kCheckpointingAxis, settings);
        if (tried.fits()) presets.push_back(std::move(tried));
      }
      std::sort(presets.begin(), presets.end(), Better);
      if (presets.size() > kPresetsInFewerBlocks) presets.resize(kPresetsInFewerBlocks);
      for (const Way& preset : presets) best = std::min(best, FewestBlocks(preset), Better);
    }
    return best;
  }

  Way FewestBlocks(const Way& way) {
    const std::string preset = way.choices.at(kCheckpointingAxis).front().value;
    if (preset == "NONE") return way;
    const auto in = [&](int64_t blocks) {
      return With(way, kCheckpointingAxis, CheckpointingOf(preset, {{"first_layers", absl::StrCat(blocks)}}));
    };
    const int64_t fewest = Fewest(Layers(query_.job.model), [&](int64_t blocks) { return in(blocks).fits(); });
    return std::min(way, in(fewest), Better);
  }

  // Returns the smallest number in [1, most] for which `fits`, or `most` if none but it may fit.
  template <class Fits>
  static int64_t Fewest(int64_t most, const Fits& fits) {
    int64_t too_few = 0;
    while (most - too_few > 1) {
      const int64_t middle = too_few + (most - too_few) / 2;
      (fits(middle) ? most : too_few) = middle;
    }
    return most;
  }

  Way LargerMicroBatch(const Way& way) {
    const std::vector<Settings> all = SettingsOf(way, kMicroBatchAxis);
    const auto own = way.choices.find(kMicroBatchAxis);
    const auto at = own == way.choices.end() ? all.end() : std::find(all.begin(), all.end(), own->second);
    return at == all.end() || at == all.begin() ? way : With(way, kMicroBatchAxis, *std::prev(at));
  }

  // Recomputes single tensors in place of a preset.
  Way TensorByTensor(const Way& way) {
    Way best = way;
    if (!MayChange(kCheckpointingAxis)) return best;
    for (const Way& base : {way, LargerMicroBatch(way)}) {
      best = std::min(best, TensorByTensorWith(With(base, kCheckpointingAxis, CheckpointingOf("NONE"))), Better);
    }
    return best;
  }

  // Recomputes the tensors of all blocks that cost the fewest seconds for each byte, as many as must be, and the last
  // of them in as few blocks as must be.
  Way TensorByTensorWith(const Way& all_kept) {
    if (!all_kept.timed.variant.status.ok() || all_kept.fits()) return all_kept;
    const auto recomputing = [&](const std::vector<std::string>& patterns) {
      const std::string list = absl::StrCat("[\"", absl::StrJoin(patterns, "\",\""), "\"]");
      return With(all_kept, kCheckpointingAxis, CheckpointingOf("NONE", {{"recompute", list}}));
    };
    std::vector<std::pair<double, std::string>> by_cost;  // Seconds for each byte, and the name.
    for (const auto& [name, tensors] : all_kept.kept) {
      const TimedVariant one = recomputing({absl::StrCat("*.", name)}).timed;
      const auto bytes = [](const TimedVariant& timed) { return static_cast<double>(timed.variant.cost.arena_bytes); };
      const double saved = bytes(all_kept.timed) - bytes(one);
      if (one.variant.status.ok() && saved > 0)
        by_cost.emplace_back((one.seconds - all_kept.timed.seconds) / saved, name);
    }
    if (by_cost.empty()) return all_kept;
    std::sort(by_cost.begin(), by_cost.end());
    const auto first = [&](int64_t count) {
      std::vector<std::string> patterns;
      for (int64_t i = 0; i < count; ++i) patterns.push_back(absl::StrCat("*.", by_cost[i].second));
      return patterns;
    };
    const int64_t count = Fewest(std::ssize(by_cost), [&](int64_t n) { return recomputing(first(n)).fits(); });
    const std::vector<std::string>& last = all_kept.kept.at(by_cost[count - 1].second);
    const auto last_in = [&](int64_t units) {
      std::vector<std::string> patterns = first(count - 1);
      patterns.insert(patterns.end(), last.begin(), last.begin() + units);
      return recomputing(patterns);
    };
    const int64_t units = Fewest(std::ssize(last), [&](int64_t n) { return last_in(n).fits(); });
    return std::min(recomputing(first(count)), last_in(units), Better);
  }

  // Leaves out settings that change nothing.
  std::vector<Override> Minimal(std::vector<Override> overrides) {
    for (size_t i = overrides.size(); i-- > 0;) {
      std::vector<Override> fewer = overrides;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      const absl::StatusOr<const Job*> with = JobWithAll(overrides), without = JobWithAll(fewer);
      if (with.ok() && without.ok() && **with == **without) overrides = std::move(fewer);
    }
    return overrides;
  }

  SearchChoice ChoiceOf(const Way& best, size_t axis) {
    SearchChoice choice{.path = std::string(Axes()[axis].path)};
    const auto taken = best.choices.find(axis);
    if (taken != best.choices.end()) choice.taken = Minimal(taken->second);
    std::optional<Way> next;
    for (const Settings& settings : SettingsOf(best, axis)) {
      const Way way = With(best, axis, settings);
      if (!way.fits() || way.key() == best.key()) continue;
      if (!next || Better(way, *next)) next = way;
    }
    if (!next) return choice;
    choice.runner_up = next->timed;
    choice.runner_up->variant.overrides = Minimal(next->choices.at(axis));
    return choice;
  }

  std::vector<TimedVariant> Front() const {
    std::vector<TimedVariant> all;
    for (const auto& [text, way] : tried_) {
      if (way.fits()) all.push_back(way.timed);
    }
    const auto bytes = [](const TimedVariant& timed) { return timed.variant.cost.arena_bytes; };
    std::stable_sort(all.begin(), all.end(), [&](const TimedVariant& a, const TimedVariant& b) {
      return std::make_pair(a.seconds, bytes(a)) < std::make_pair(b.seconds, bytes(b));
    });
    std::vector<TimedVariant> front;
    for (TimedVariant& timed : all) {
      if (front.empty() || bytes(timed) < bytes(front.back())) front.push_back(std::move(timed));
    }
    return front;
  }

  absl::Status NothingFits(const Way& nearest) {
    SHALE_RETURN_IF_ERROR(limits_.Check());
    const Variant& variant = nearest.timed.variant;
    SHALE_RETURN_IF_ERROR(variant.status);
    return absl::ResourceExhaustedError(absl::StrCat("no setting fits; nearest is ",
                                                     SettingsText(variant.overrides, ", "), ", which ",
                                                     MissingText(variant.cost, budget_)));
  }

  const SearchQuery& query_;
  const WorkLimits& limits_;
  Drafter drafter_;
  std::map<std::string, Way> tried_;  // By their overrides, as is jobs_.
  std::map<std::string, absl::StatusOr<Job>> jobs_;
  Budget budget_;
  absl::Status error_;  // The first error of a prediction.
  int plans_ = 0;
};

}  // namespace
}  // namespace internal

DraftSeconds SecondsOn(const proto::MachineProfile& profile, int64_t hosts) {
  return [profile, hosts](const Job& job, const Draft& draft) -> absl::StatusOr<double> {
    const StepFacts facts = StepFactsOf(job, draft.graphs->train, draft.options.mesh, profile, hosts);
    return Predict(draft.train.step.program, facts, profile).step_seconds;
  };
}

std::vector<std::string> SearchFields() {
  std::vector<std::string> fields;
  for (const internal::Axis& axis : internal::Axes()) fields.emplace_back(axis.path);
  return fields;
}

absl::Status CheckSearchField(absl::string_view path) {
  const std::vector<std::string> fields = SearchFields();
  if (std::find(fields.begin(), fields.end(), path) != fields.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("found ", Quoted(path), "; allowed: ", absl::StrJoin(fields, ", ")));
}

absl::StatusOr<SearchResult> FindFastest(const SearchQuery& query, const WorkLimits& limits) {
  for (const std::string& field : query.fields) SHALE_RETURN_IF_ERROR(CheckSearchField(field));
  return internal::Searcher(query, limits).Run();
}

}  // namespace shale
