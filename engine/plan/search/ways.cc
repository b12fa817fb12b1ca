#include "engine/plan/search/ways.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/compile/memory/plan.h"
#include "kernels/check.h"

namespace shale::internal {
namespace {

// What fits by its least bytes, but needs all but this share of the budget, is placed to know it.
constexpr int64_t kNearBudget = 200;

std::vector<const Option*> OptionsInOrder() {
  std::vector<const Option*> all;
  for (const Option& option : Options()) {
    if (option.all != nullptr) all.push_back(&option);
  }
  std::sort(all.begin(), all.end(), [](auto* a, auto* b) { return a->search_order < b->search_order; });
  return all;
}

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

// Returns what stands for a way that was not tried any more.
const Way& NotTried() {
  static const Way* const way = new Way{.variant = {.status = absl::DeadlineExceededError("the search ended")}};
  return *way;
}

}  // namespace

const std::vector<const Option*>& SearchedOptions() {
  static const auto* const options = new std::vector<const Option*>(OptionsInOrder());
  return *options;
}

size_t PositionOf(absl::string_view path) {
  const std::vector<const Option*>& all = SearchedOptions();
  const auto at = std::find_if(all.begin(), all.end(), [&](const Option* option) { return option->path == path; });
  SHALE_CHECK(at != all.end()) << path;
  return static_cast<size_t>(at - all.begin());
}

Ways::Ways(const SearchQuery& query, const WorkLimits& limits)
    : query_(query), limits_(limits), drafter_(query.job, query.machine, limits, query.job_with) {}

bool Ways::MayChange(size_t option) const {
  const std::vector<std::string>& fields = query_.fields;
  return fields.empty() || std::find(fields.begin(), fields.end(), SearchedOptions()[option]->path) != fields.end();
}

absl::StatusOr<const Job*> Ways::JobWithAll(const std::vector<Override>& overrides) {
  const auto [it, added] = jobs_.try_emplace(SettingsText(overrides, ";"), absl::UnknownError(""));
  if (added) it->second = drafter_.With(overrides);
  SHALE_RETURN_IF_ERROR(it->second.status());
  return &*it->second;
}

// Returns the settings of all choices, without those that are not possible with the choices before them.
absl::StatusOr<std::vector<Override>> Ways::OverridesOf(const Choices& choices) {
  std::vector<Override> all;
  for (const auto& [option, settings] : choices) {
    SHALE_ASSIGN_OR_RETURN(const Job* job, JobWithAll(all));
    const std::vector<Settings> possible = SearchedOptions()[option]->all(*job);
    // Checkpointing of some blocks and tensors is none of its settings of all blocks.
    const bool any = option == PositionOf("activation_checkpointing.preset") && !possible.empty();
    const auto same = [&](const Settings& other) { return other.front() == settings.front(); };
    const auto found = std::find_if(possible.begin(), possible.end(), same);
    if (!any && found == possible.end()) continue;
    const Settings& taken = any ? settings : *found;
    all.insert(all.end(), taken.begin(), taken.end());
  }
  return all;
}

std::vector<Settings> Ways::SettingsOf(const Way& way, size_t option) {
  if (!MayChange(option)) return {};
  const absl::StatusOr<const Job*> job = JobWithAll(way.variant.overrides);
  return job.ok() ? SearchedOptions()[option]->all(**job) : std::vector<Settings>();
}

std::vector<Override> Ways::Minimal(std::vector<Override> overrides) {
  for (size_t i = overrides.size(); i-- > 0;) {
    std::vector<Override> fewer = overrides;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    const absl::StatusOr<const Job*> with = JobWithAll(overrides), without = JobWithAll(fewer);
    if (with.ok() && without.ok() && **with == **without) overrides = std::move(fewer);
  }
  return overrides;
}

const Way& Ways::Own() {
  Way& way = tried_[""];
  if (plans_ > 0) return way;
  ++plans_;
  absl::StatusOr<Draft> draft = drafter_.Compile();
  way.variant.status = draft.status();
  if (!draft.ok()) return way;
  Take(*draft, way);
  way.exact = true;
  Time(*draft, way);
  return way;
}

const Way& Ways::Sketch(const Choices& choices, bool timed) {
  const absl::StatusOr<std::vector<Override>> overrides = OverridesOf(choices);
  const std::string text = overrides.ok() ? SettingsText(*overrides, ";") : "";
  const auto found = overrides.ok() ? tried_.find(text) : tried_.end();
  if (found != tried_.end() && (!timed || found->second.timed)) return found->second;
  if (found != tried_.end() && found->second.fits()) return Timed(found->second);
  if (!overrides.ok() || ended()) return NotTried();
  Way& way = tried_[text];
  ++plans_;
  way.choices = choices;
  way.variant.overrides = *overrides;
  const absl::StatusOr<const Job*> job = JobWithAll(*overrides);
  absl::StatusOr<Draft> draft = job.ok() ? drafter_.Sketch(**job) : job.status();
  way.variant.status = draft.status();
  if (!draft.ok()) return way;
  Take(*draft, way);
  if (!way.fits()) {
    if (timed) Time(*draft, way);
    return way;
  }
  if (const int64_t budget = draft->budget.bytes; draft->cost.arena_bytes > budget - budget / kNearBudget) {
    Place(*std::move(draft), way, timed);
    return way;
  }
  if (timed || query_.seconds) {
    Time(*draft, way);
  } else {
    TimeRoughly(*draft, way);
  }
  last_ = &way;
  last_draft_ = *std::move(draft);
  return way;
}

const Way& Ways::Timed(const Way& sketch) {
  if (sketch.timed || !sketch.fits()) return sketch;
  Way& way = tried_.at(SettingsText(sketch.variant.overrides, ";"));
  if (last_ == &way) {
    Time(*last_draft_, way);
    return way;
  }
  const absl::StatusOr<const Job*> job = JobWithAll(way.variant.overrides);
  absl::StatusOr<Draft> draft = job.ok() ? drafter_.Sketch(**job) : job.status();
  way.variant.status = draft.status();
  if (!draft.ok()) return way;
  Time(*draft, way);
  last_ = &way;
  last_draft_ = *std::move(draft);
  return way;
}

const Way& Ways::Exact(const Way& sketch) {
  if (sketch.exact || !sketch.variant.status.ok()) return sketch;
  Way& way = tried_.at(SettingsText(sketch.variant.overrides, ";"));
  if (last_ == &way) {
    last_ = nullptr;
    Place(*std::move(last_draft_), way);
    return way;
  }
  const absl::StatusOr<const Job*> job = JobWithAll(way.variant.overrides);
  absl::StatusOr<Draft> draft = job.ok() ? drafter_.Sketch(**job) : job.status();
  way.variant.status = draft.status();
  if (draft.ok()) Place(*std::move(draft), way);
  return way;
}

void Ways::Place(Draft sketch, Way& way, bool timed) {
  const absl::StatusOr<const Job*> job = JobWithAll(way.variant.overrides);
  SHALE_CHECK(job.ok()) << job.status();
  absl::StatusOr<Draft> draft = drafter_.Place(**job, std::move(sketch));
  way.variant.status = draft.status();
  if (!draft.ok()) return;
  Take(*draft, way);
  way.exact = true;
  if (way.fits() || timed) Time(*draft, way);
}

void Ways::Take(const Draft& draft, Way& way) {
  Variant& variant = way.variant;
  const StepTime time{variant.cost.seconds, variant.cost.known};
  variant.accumulation = draft.options.accumulation;
  variant.cost = draft.cost;
  time.Fill(variant.cost);
  variant.fits = draft.fits;
  budget_ = draft.budget;
  way.missing_bytes = draft.budget.Missing(draft.cost.arena_bytes, draft.cost.host_bytes);
  if (way.kept.empty()) way.kept = KeptBySeveralUnits(draft.train.step.program);
}

void Ways::Time(Draft& draft, Way& way) {
  const absl::StatusOr<const Job*> job = JobWithAll(way.variant.overrides);
  SHALE_CHECK(job.ok()) << job.status();
  way.timed = true;
  if (!query_.seconds) {
    drafter_.TimeOf(**job, draft).Fill(way.variant.cost);
    return;
  }
  DeriveWaits(draft.train.step.program, draft.train.memory);
  const absl::StatusOr<double> seconds = query_.seconds(**job, draft);
  if (seconds.ok()) {
    StepTime{.seconds = *seconds, .known = 1}.Fill(way.variant.cost);
  } else {
    error_ = seconds.status();
  }
}

void Ways::TimeRoughly(const Draft& draft, Way& way) {
  const absl::StatusOr<const Job*> job = JobWithAll(way.variant.overrides);
  SHALE_CHECK(job.ok()) << job.status();
  way.variant.cost.seconds = drafter_.LeastSecondsOf(**job, draft);
}

}  // namespace shale::internal
