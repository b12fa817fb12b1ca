#include "engine/plan/search/search.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/plan/search/ways.h"

namespace shale {
namespace internal {
namespace {

// What gains less than this share of the seconds is no reason to differ from the job.
constexpr double kLeastGain = 1e-3;
// How many of the fastest presets are tried in fewer blocks.
constexpr size_t kPresetsInFewerBlocks = 3;
// The most ways of the front that a result has: people choose among few.
constexpr size_t kMostOfFront = 12;

class Searcher {
 public:
  Searcher(const SearchQuery& query, const WorkLimits& limits) : query_(query), limits_(limits), ways_(query, limits) {}

  absl::StatusOr<SearchResult> Run() {
    PrepareStrategies(Way());  // While the job is planned as it is: most fit so.
    const Way& own = ways_.Own();
    SHALE_RETURN_IF_ERROR(ways_.error());
    if (absl::IsInvalidArgument(own.variant.status)) return own.variant.status;
    Way best = own;
    if (!best.fits()) best = std::min(best, Least(best), Better);
    BestStrategy(best);
    TakeAccumulation(best);
    best = Descend(best);
    const Way whole = best;
    InFewerBlocks(whole, best);
    TensorByTensor(whole, best);
    if (Better(best, whole)) best = Descend(best);
    SHALE_RETURN_IF_ERROR(ways_.error());
    if (!best.fits()) return NothingFits(ways_.Exact(best));
    SearchResult result{.best = best.variant, .own = own.variant, .budget = ways_.budget()};
    result.choices = ChoicesOf(best);
    if (!query_.only_best) result.front = Front();
    DropAccumulationOfAuto(result.best);
    result.best.overrides = ways_.Minimal(std::move(result.best.overrides));
    for (SearchChoice& choice : result.choices) choice.taken = TakenOf(choice.path, best.choices, result.best);
    for (Variant& way : result.front) way.overrides = ways_.Minimal(std::move(way.overrides));
    result.plans = ways_.plans();
    result.ended_early = ways_.ended();
    if (!query_.only_best) result.changing = ChangingTraining(result.best, ways_);
    SHALE_RETURN_IF_ERROR(ways_.error());
    return result;
  }

 private:
  // Decides the accumulation, so that ways are not compiled with each of them, if the job leaves it open.
  void TakeAccumulation(Way& way) {
    const bool open = query_.job.sharding.accumulation == Accumulation::kAuto && way.variant.status.ok();
    if (!open || !ways_.MayChange(kAccumulation)) return;
    Choices choices = way.choices;
    choices[kAccumulation] = {{"sharding.accumulation", std::string(ToString(way.variant.accumulation))}};
    if (ways_.SettingsOf(way, kAccumulation).empty()) return;
    const Way& with = ways_.Exact(ways_.Sketch(choices));
    if (with.variant.status.ok()) way = with;
  }

  // Leaves the accumulation open again if the planner then takes the same.
  void DropAccumulationOfAuto(Variant& best) {
    if (query_.job.sharding.accumulation != Accumulation::kAuto) return;
    std::vector<Override> fewer = best.overrides;
    std::erase_if(fewer, [](const Override& setting) { return setting.path == "sharding.accumulation"; });
    if (fewer == best.overrides) return;
    const absl::StatusOr<Accumulation> taken = ways_.AccumulationWith(fewer);
    if (taken.ok() && *taken == best.accumulation) best.overrides = std::move(fewer);
  }

  static Choices With(const Choices& choices, size_t option, const Settings& settings) {
    Choices all = choices;
    all[option] = settings;
    return all;
  }

  // Replaces `best` by the way with these choices if that is better by more than kLeastGain. What cannot be so is not
  // placed. Returns whether it did.
  bool Take(const Choices& choices, Way& best) {
    const auto is_better = [&](const Way& way) {
      const bool faster = way.variant.cost.seconds < best.variant.cost.seconds * (1 - kLeastGain);
      return Better(way, best) && (!best.fits() || faster);
    };
    const Way& way = ways_.Sketch(choices);
    if (!is_better(way) || !is_better(ways_.Timed(way)) || !is_better(ways_.Exact(way))) return false;
    best = way;
    return true;
  }

  // Takes the best strategy, each with the micro-batch and the checkpointing that are best with it. If the job leaves
  // the accumulation open, each way has the one that the planner takes: it depends on all three.
  void BestStrategy(Way& best) {
    const Choices base = best.choices;
    for (const Settings& settings : PrepareStrategies(best)) {
      Way way = ways_.Timed(ways_.Sketch(With(base, kStrategy, settings)));
      if (!way.variant.status.ok()) continue;
      BestMicroBatchAndCheckpointing(way);
      Take(way.choices, best);
    }
  }

  // Begins to make the way with each strategy, and returns all strategies.
  std::vector<Settings> PrepareStrategies(const Way& way) {
    std::vector<Settings> all = ways_.SettingsOf(way, kStrategy);
    Prepare(way.choices, kStrategy, all, Depth::kTimedIfFits);
    return all;
  }

  // Returns the way with the setting of every option that needs the least memory.
  Way Least(Way way) {
    for (size_t option = 0; option < SearchedOptions().size(); ++option) {
      const Choices base = way.choices;
      const std::vector<Settings> all = ways_.SettingsOf(way, option);
      Prepare(base, option, all, Depth::kSketched);
      for (const Settings& settings : all) {
        const Way& tried = ways_.Sketch(With(base, option, settings));
        const auto bytes = [](const Way& w) { return std::make_pair(w.missing_bytes, w.variant.cost.arena_bytes); };
        if (tried.variant.status.ok() && bytes(tried) < bytes(way)) way = tried;
      }
    }
    return ways_.Exact(way);
  }

  // Changes the options in turn, each to its best setting, until no change is better.
  Way Descend(Way best) {
    for (bool improved = true; improved && !ways_.ended();) {
      improved = BestMicroBatchAndCheckpointing(best);
      for (size_t option = 0; option < SearchedOptions().size(); ++option) {
        if (option != kMicroBatch && option != kCheckpointing) improved |= BestOf(option, best);
      }
    }
    return best;
  }

  bool BestOf(size_t option, Way& best) {
    bool improved = false;
    const Choices base = best.choices;
    const bool first_that_fits = FirstThatFits(option);
    double fastest = 0;  // Of the first that fits.
    const std::vector<Settings> all = ways_.SettingsOf(best, option);
    PrepareFrom(option, best);
    for (const Settings& settings : all) {
      const Choices choices = With(base, option, settings);
      improved |= Take(choices, best);
      const Way& tried = ways_.Sketch(choices);
      if (!first_that_fits) {
        // What needs more memory may still be faster with fewer sequences at once.
        if (best.fits() && !tried.fits()) improved |= Take(WithMicroBatch(tried, /*larger=*/false), best);
        continue;
      }
      if (!ways_.Timed(tried).fits()) continue;
      if (fastest > 0 && tried.variant.cost.seconds > fastest) break;
      fastest = tried.variant.cost.seconds;
    }
    return improved;
  }

  // Tries each checkpointing with the largest micro-batch that fits with it, and with the next smaller one. Returns
  // whether one is better.
  bool BestMicroBatchAndCheckpointing(Way& best) {
    const Way base = best;
    std::vector<Settings> micro_batches = ways_.SettingsOf(base, kMicroBatch);
    const std::vector<Settings> all = ways_.SettingsOf(base, kCheckpointing);
    if (micro_batches.empty()) return BestOf(kCheckpointing, best);
    if (all.empty()) return BestOf(kMicroBatch, best);
    const int64_t count = std::ssize(micro_batches);
    std::vector<WayOf> searches;
    for (const Settings& checkpointing : all) {
      searches.push_back([&, with = With(base.choices, kCheckpointing, checkpointing)](int64_t micro_batch) {
        return With(with, kMicroBatch, micro_batches[micro_batch]);
      });
    }
    // The bytes fall from micro-batch to micro-batch, but for LAYERED.
    const Halves whole{.too_large = -1, .fits = count, .round = 1};
    PrepareSearches(whole, searches);
    bool improved = false;
    for (size_t s = 0; s < all.size(); ++s) {
      Halves halves = whole;
      while (halves.open()) halves.Go(ways_.Sketch(searches[s](halves.middle())).fits());
      for (int64_t i = halves.fits; i < std::min(halves.fits + 2, count); ++i) improved |= Take(searches[s](i), best);
      // Nothing is recomputed with the largest micro-batch: no other checkpointing is faster.
      if (halves.fits == 0 && all[s].front().value == "NONE") break;
    }
    return improved;
  }

  // Returns the choices of a way by its number.
  using WayOf = std::function<Choices(int64_t)>;

  // Sketches what these searches will ask for, side by side, and the first ways that fit.
  void PrepareSearches(const Halves& halves, const std::vector<WayOf>& searches) {
    if (!ways_.has_threads()) return;
    std::vector<Halves> at(searches.size(), halves);
    const auto prepare = [&](auto&& number_of) {
      std::vector<Choices> ways;
      for (size_t s = 0; s < searches.size(); ++s) {
        if (const int64_t number = number_of(at[s]); number >= 0) ways.push_back(searches[s](number));
      }
      ways_.Prepare(ways, Depth::kSketched);
      return !ways.empty();
    };
    while (prepare([](const Halves& one) { return one.open() ? one.middle() : -1; })) {
      for (size_t s = 0; s < searches.size(); ++s) {
        if (at[s].open()) at[s].Go(ways_.SketchFits(searches[s](at[s].middle())));
      }
    }
    prepare([&](const Halves& one) { return one.fits < halves.fits ? one.fits : -1; });
  }

  // Begins to make the ways with these settings of an option.
  void Prepare(const Choices& base, size_t option, const std::vector<Settings>& all, Depth depth) {
    std::vector<Choices> ways;
    for (const Settings& settings : all) ways.push_back(With(base, option, settings));
    ways_.Prepare(ways, depth);
  }

  // Begins to make the ways with each setting of an option, and then those with the options after it, which are asked
  // for next if no setting of this one is better.
  void PrepareFrom(size_t option, const Way& best) {
    if (!ways_.has_threads()) return;
    std::vector<std::pair<Choices, Depth>> wanted;
    for (; option < SearchedOptions().size(); ++option) {
      if (option == kMicroBatch || option == kCheckpointing) continue;
      const Depth depth = FirstThatFits(option) ? Depth::kTimedIfFits : Depth::kSketched;
      for (const Settings& settings : ways_.SettingsOf(best, option)) {
        wanted.emplace_back(With(best.choices, option, settings), depth);
      }
    }
    ways_.Prepare(wanted);
  }

  // Applies the best presets to as few blocks as fit, with the micro-batch of `way` and with the next larger one.
  void InFewerBlocks(const Way& way, Way& best) {
    if (!ways_.MayChange(kCheckpointing)) return;
    for (const Choices& base : {way.choices, WithMicroBatch(way, /*larger=*/true)}) {
      std::vector<Way> presets;
      const std::vector<Settings> all = ways_.SettingsOf(way, kCheckpointing);
      Prepare(base, kCheckpointing, all, Depth::kTimedIfFits);
      for (const Settings& settings : all) {
        const Way& tried = ways_.Timed(ways_.Sketch(With(base, kCheckpointing, settings)));
        if (tried.fits()) presets.push_back(tried);
        if (tried.fits() && settings.front().value == "NONE") break;
      }
      std::sort(presets.begin(), presets.end(), Better);
      if (presets.size() > kPresetsInFewerBlocks) presets.resize(kPresetsInFewerBlocks);
      std::vector<WayOf> searches;
      for (const Way& preset : presets) {
        const std::string name = preset.choices.at(kCheckpointing).front().value;
        if (name == "NONE") continue;
        searches.push_back([this, name, choices = preset.choices](int64_t blocks) {
          return With(choices, kCheckpointing, CheckpointingOf(name, {{"first_layers", absl::StrCat(blocks)}}));
        });
      }
      const int64_t layers = Layers(query_.job.model);
      PrepareSearches({.too_large = 0, .fits = layers}, searches);
      for (const WayOf& in : searches) TakeFewest(layers, in, best);
    }
  }

  // Takes the way of the smallest number in [1, most] with which the job fits, or one of the two after it if only its
  // plan shows that it does not fit.
  void TakeFewest(int64_t most, const WayOf& in, Way& best) {
    Halves halves{.too_large = 0, .fits = most};
    while (halves.open()) halves.Go(ways_.Sketch(in(halves.middle())).fits());
    for (int64_t n = halves.fits; n <= std::min(halves.fits + 2, most); ++n) {
      Take(in(n), best);
      if (ways_.Exact(ways_.Sketch(in(n))).fits()) return;
    }
  }

  // Returns the choices with the next larger or smaller micro-batch, or as they are if there is none.
  Choices WithMicroBatch(const Way& way, bool larger) {
    const std::vector<Settings> all = ways_.SettingsOf(way, kMicroBatch);
    const auto own = way.choices.find(kMicroBatch);
    const auto at = own == way.choices.end() ? all.end() : std::find(all.begin(), all.end(), own->second);
    if (at == all.end() || at == (larger ? all.begin() : all.end() - 1)) return way.choices;
    return With(way.choices, kMicroBatch, larger ? *std::prev(at) : *std::next(at));
  }

  // Recomputes single tensors in place of a preset.
  void TensorByTensor(const Way& way, Way& best) {
    if (!ways_.MayChange(kCheckpointing)) return;
    for (const Choices& base : {way.choices, WithMicroBatch(way, /*larger=*/true)}) {
      TensorByTensorWith(ways_.Sketch(With(base, kCheckpointing, CheckpointingOf("NONE")), /*timed=*/true), best);
    }
  }

  // Recomputes the tensors of all blocks that cost the fewest seconds for each byte, as many as must be, and the last
  // of them in as few blocks as must be.
  void TensorByTensorWith(const Way& all_kept, Way& best) {
    if (!all_kept.variant.status.ok() || all_kept.fits()) return;
    const auto recomputing = [&](const std::vector<std::string>& patterns) {
      const std::string list = absl::StrCat("[\"", absl::StrJoin(patterns, "\",\""), "\"]");
      return With(all_kept.choices, kCheckpointing, CheckpointingOf("NONE", {{"recompute", list}}));
    };
    const Cost& kept = all_kept.variant.cost;
    std::vector<Choices> singles;
    for (const auto& [name, tensors] : all_kept.kept) singles.push_back(recomputing({absl::StrCat("*.", name)}));
    ways_.Prepare(singles, Depth::kTimed);
    std::vector<std::pair<double, std::string>> by_cost;  // Seconds for each byte, and the name.
    for (const auto& [name, tensors] : all_kept.kept) {
      const Variant& one = ways_.Sketch(recomputing({absl::StrCat("*.", name)}), /*timed=*/true).variant;
      const auto saved = static_cast<double>(kept.arena_bytes - one.cost.arena_bytes);
      if (one.status.ok() && saved > 0) by_cost.emplace_back((one.cost.seconds - kept.seconds) / saved, name);
    }
    std::sort(by_cost.begin(), by_cost.end());
    const auto first = [&](int64_t count) {
      std::vector<std::string> patterns;
      for (int64_t i = 0; i < count; ++i) patterns.push_back(absl::StrCat("*.", by_cost[i].second));
      return patterns;
    };
    std::vector<Choices> counts;
    for (int64_t n = 1; n <= std::ssize(by_cost); ++n) counts.push_back(recomputing(first(n)));
    ways_.Prepare(counts, Depth::kSketched);
    int64_t count = 1;
    while (count <= std::ssize(by_cost) && !ways_.Sketch(recomputing(first(count))).fits()) ++count;
    if (count > std::ssize(by_cost)) return;
    const std::vector<std::string>& last = all_kept.kept.at(by_cost[count - 1].second);
    TakeFewest(
        std::ssize(last),
        [&](int64_t units) {
          std::vector<std::string> patterns = first(count - 1);
          if (units == std::ssize(last)) return recomputing(first(count));
          patterns.insert(patterns.end(), last.begin(), last.begin() + units);
          return recomputing(patterns);
        },
        best);
  }

  // Returns the settings of an option that are in the overrides of `best`.
  static std::vector<Override> TakenOf(absl::string_view path, const Choices& choices, const Variant& best) {
    const auto chosen = choices.find(PositionOf(path));
    std::vector<Override> taken;
    if (chosen == choices.end()) return taken;
    for (const Override& setting : best.overrides) {
      const Settings& own = chosen->second;
      if (std::find(own.begin(), own.end(), setting) != own.end()) taken.push_back(setting);
    }
    return taken;
  }

  std::vector<SearchChoice> ChoicesOf(const Way& best) {
    std::vector<Choices> ways;
    for (size_t option = 0; option < SearchedOptions().size(); ++option) {
      for (const Settings& settings : ways_.SettingsOf(best, option)) {
        ways.push_back(With(best.choices, option, settings));
      }
    }
    ways_.Prepare(ways, Depth::kTimedIfFits);
    std::vector<SearchChoice> choices;
    std::vector<std::pair<size_t, std::vector<const Way*>>> others;  // The option of each choice, and OthersOf.
    std::vector<Choices> first;
    for (size_t option = 0; option < SearchedOptions().size(); ++option) {
      if (!ways_.MayChange(option)) continue;
      choices.push_back({.path = std::string(SearchedOptions()[option]->path)});
      others.emplace_back(option, OthersOf(best, option, choices.back()));
      if (!others.back().second.empty()) first.push_back(others.back().second.front()->choices);
    }
    ways_.Prepare(first, Depth::kPlaced);
    for (size_t i = 0; i < choices.size(); ++i) {
      for (const Way* other : others[i].second) {
        const Way& exact = ways_.Exact(*other);
        const Settings& settings = exact.choices.at(others[i].first);
        if (exact.fits()) {
          choices[i].runner_up = exact.variant;
          choices[i].runner_up->overrides = ways_.Minimal(settings);
          break;
        }
        ListFor(exact.variant.status, choices[i]).push_back(settings);
      }
    }
    return choices;
  }

  // Returns the list of a choice to which a setting belongs that does not fit, or that has such an error.
  static std::vector<Settings>& ListFor(const absl::Status& status, SearchChoice& choice) {
    if (absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) return choice.not_tried;
    return status.ok() ? choice.too_large : choice.ruled_out;
  }

  // Returns the ways with other settings of an option that may fit, the best first. Adds the settings that are too
  // large, ruled out or not tried to `choice`.
  std::vector<const Way*> OthersOf(const Way& best, size_t option, SearchChoice& choice) {
    std::vector<const Way*> others;
    const absl::StatusOr<const Job*> own = ways_.JobWithAll(best.variant.overrides);
    if (!own.ok()) return others;
    for (const Settings& settings : ways_.SettingsOf(best, option)) {
      const Way& way = ways_.Sketch(With(best.choices, option, settings));
      if (!way.variant.status.ok()) {
        ListFor(way.variant.status, choice).push_back(settings);
      } else if (const absl::StatusOr<const Job*> job = ways_.JobWithAll(way.variant.overrides);
                 job.ok() && !AreAlike(**job, **own)) {
        if (ways_.Timed(way).fits()) others.push_back(&way);
        if (!way.fits()) choice.too_large.push_back(settings);
      }
    }
    std::sort(others.begin(), others.end(), [](const Way* a, const Way* b) { return Better(*a, *b); });
    return others;
  }

  static std::pair<double, int64_t> CostOf(const Way& way) {
    return {way.variant.cost.seconds, way.variant.cost.arena_bytes};
  }

  // A way that fits, and its cost when it was listed, which is a bound of that of its plan.
  using BoundedWay = std::pair<std::pair<double, int64_t>, const Way*>;

  // Returns the fastest of `all` that needs at most so many bytes, and of equally fast ones the smallest, or null.
  // Plans only those whose bounds may be better than what it has. REQUIRES: `all` is sorted by its bounds.
  const Way* FastestWithin(int64_t bytes, const std::vector<BoundedWay>& all) {
    const Way* best = nullptr;
    const auto is_better = [&](const Way& way) {
      return way.fits() && way.variant.cost.arena_bytes <= bytes && (best == nullptr || CostOf(way) < CostOf(*best));
    };
    for (const auto& [bound, way] : all) {
      if (best != nullptr && CostOf(*best) <= bound) break;
      if (is_better(*way) && is_better(ways_.Timed(*way)) && is_better(ways_.Exact(*way))) best = way;
    }
    return best;
  }

  // Begins to plan what is the front by the bounds.
  void PrepareFront(const std::vector<BoundedWay>& all) {
    std::vector<Choices> ways;
    int64_t bytes = kNoBudget;
    for (const auto& [bound, way] : all) {
      if (bound.second > bytes) continue;
      ways.push_back(way->choices);
      bytes = bound.second - 1;
    }
    ways_.Prepare(ways, Depth::kPlaced);
  }

  // Returns the ways that no other beats in both seconds and bytes, from the fastest on: each is the fastest of those
  // that need less than the one before it. Leaves out those whose neighbors' times differ least, if there are many.
  std::vector<Variant> Front() {
    std::vector<BoundedWay> all;
    for (const auto& [text, way] : ways_.all()) {
      if (way.fits()) all.push_back({CostOf(way), &way});
    }
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    PrepareFront(all);
    std::vector<Variant> front;
    int64_t bytes = kNoBudget;
    while (const Way* fastest = FastestWithin(bytes, all)) {
      front.push_back(fastest->variant);
      bytes = fastest->variant.cost.arena_bytes - 1;
    }
    while (front.size() > kMostOfFront) {
      size_t closest = 1;
      for (size_t i = 1; i + 1 < front.size(); ++i) {
        const auto gap = [&](size_t at) { return front[at + 1].cost.seconds / front[at - 1].cost.seconds; };
        if (gap(i) < gap(closest)) closest = i;
      }
      front.erase(front.begin() + static_cast<std::ptrdiff_t>(closest));
    }
    return front;
  }

  absl::Status NothingFits(const Way& nearest) {
    SHALE_RETURN_IF_ERROR(limits_.Check());
    const Variant& variant = nearest.variant;
    SHALE_RETURN_IF_ERROR(variant.status);
    const std::string settings = SettingsText(ways_.Minimal(variant.overrides), ", ");
    return absl::ResourceExhaustedError(absl::StrCat("no setting fits; nearest is ",
                                                     settings.empty() ? "the job as it is written" : settings,
                                                     ", which ", MissingText(variant.cost, ways_.budget())));
  }

  const size_t kStrategy = PositionOf("sharding.strategy");
  const size_t kMicroBatch = PositionOf("batch.micro_batch");
  const size_t kCheckpointing = PositionOf("activation_checkpointing.preset");
  const size_t kAccumulation = PositionOf("sharding.accumulation");

  const SearchQuery& query_;
  const WorkLimits& limits_;
  Ways ways_;
};

}  // namespace
}  // namespace internal

absl::StatusOr<SearchResult> FindFastest(const SearchQuery& query, const WorkLimits& limits) {
  for (const std::string& field : query.fields) SHALE_RETURN_IF_ERROR(CheckSearchField(field));
  if (!query.seconds && query.machine.profile == nullptr) {
    return absl::FailedPreconditionError("nothing is known of the machine's speed");
  }
  return internal::Searcher(query, limits).Run();
}

}  // namespace shale
