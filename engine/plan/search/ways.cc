#include "engine/plan/search/ways.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "engine/compile/memory/plan.h"
#include "kernels/check.h"
#include "kernels/hardware_threads.h"

namespace shale::internal {
namespace {

// What fits by its least bytes, but needs all but this share of the budget, is placed to know it.
constexpr int64_t kNearBudget = 200;

int64_t InstructionsOf(const MadeDraft& made) {
  return made.draft.ok() ? std::ssize(made.draft->train.step.program.instructions) : 0;
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

// Gives a way what is known of another one whose job is equal.
void TakeResults(const Way& same, Way& way) {
  std::vector<Override> overrides = std::move(way.variant.overrides);
  way.variant = same.variant;
  way.variant.overrides = std::move(overrides);
  if (way.kept.empty()) way.kept = same.kept;
  way.missing_bytes = same.missing_bytes;
  way.exact = same.exact;
  way.timed = same.timed;
}

// Returns what stands for a way that was not tried any more.
const Way& NotTried() {
  static const Way* const way = new Way{.variant = {.status = absl::DeadlineExceededError("the search ended")}};
  return *way;
}

}  // namespace

size_t PositionOf(absl::string_view path) {
  const std::vector<const Option*>& all = SearchedOptions();
  const auto at = std::find_if(all.begin(), all.end(), [&](const Option* option) { return option->path == path; });
  SHALE_CHECK(at != all.end()) << path;
  return static_cast<size_t>(at - all.begin());
}

bool AreAlike(Job a, Job b) {
  for (Job* job : {&a, &b}) job->sharding.shard_ranks = ShardRanks(job->sharding);
  return a == b;
}

Ways::Ways(const SearchQuery& query, const WorkLimits& limits)
    : query_(query),
      limits_(limits),
      drafter_(query.job, query.machine, limits, query.job_with),
      ahead_(std::min<int64_t>(query.most_threads, HardwareThreads()) - 1,
             [this](const Job& job, Depth depth, MadeDraft& made) { Make(job, depth, made); }) {}

bool Ways::MayChange(size_t option) const {
  const std::vector<std::string>& fields = query_.fields;
  return fields.empty() || std::find(fields.begin(), fields.end(), SearchedOptions()[option]->path) != fields.end();
}

absl::StatusOr<const Job*> Ways::JobWithAll(const std::vector<Override>& overrides) {
  SHALE_ASSIGN_OR_RETURN(const KnownJob* known, KnownJobWith(overrides));
  return &known->job;
}

absl::StatusOr<Ways::KnownJob*> Ways::KnownJobWith(const std::vector<Override>& overrides) {
  const auto [it, added] = jobs_.try_emplace(SettingsText(overrides, ";"), absl::UnknownError(""));
  if (!added) return it->second;
  absl::StatusOr<Job> job = drafter_.With(overrides);
  if (!job.ok()) return it->second = job.status();
  const auto is_equal = [&](const KnownJob& known) {
    // First what most ways differ in.
    return known.job.activation_checkpointing == job->activation_checkpointing && known.job.batch == job->batch &&
           known.job == *job;
  };
  const auto found = std::find_if(known_jobs_.begin(), known_jobs_.end(), is_equal);
  if (found != known_jobs_.end()) return it->second = &*found;
  return it->second = &known_jobs_.emplace_back(KnownJob{.name = it->first, .job = *std::move(job)});
}

Ways::KnownJob& Ways::KnownJobOf(const Way& way) {
  const absl::StatusOr<KnownJob*> known = KnownJobWith(way.variant.overrides);
  SHALE_CHECK(known.ok()) << known.status();
  return **known;
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
    if (with.ok() && without.ok() && *with == *without) overrides = std::move(fewer);
  }
  return overrides;
}

const Way& Ways::Own() {
  Way& way = tried_[""];
  if (plans_ > 0) return way;
  ++plans_;
  MadeDraft made{.draft = drafter_.Compile(), .made = true, .placed = true};
  if (made.draft.ok()) made.kept = KeptBySeveralUnits(made.draft->train.step.program);
  Set(made, way);
  const absl::StatusOr<KnownJob*> known = KnownJobWith({});
  if (!made.draft.ok() || !known.ok()) return way;
  Time((*known)->job, *made.draft, way);
  (*known)->ways[kExact] = way;
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
  const absl::StatusOr<KnownJob*> known = KnownJobWith(*overrides);
  way.variant.status = known.status();
  if (!known.ok()) return way;
  std::optional<Way>& same = (*known)->ways[timed ? kTimedSketch : kSketch];
  if (same) {
    TakeResults(*same, way);
    return way;
  }
  const Job& job = (*known)->job;
  MadeDraft made = ahead_.Take({(*known)->name, &job, timed ? Depth::kTimed : Depth::kSketched});
  Set(made, way);
  if (made.draft.ok()) {
    if (timed || (way.fits() && (made.placed || query_.seconds))) {
      Time(job, *made.draft, way);
    } else {
      way.variant.cost.seconds = made.least_seconds;
    }
    // One that does not fit is not asked for again, or hardly ever.
    if (!made.placed && way.fits()) ahead_.Keep((*known)->name, std::move(made));
  }
  same = way;
  return way;
}

const Way& Ways::Timed(const Way& sketch) {
  if (sketch.timed || !sketch.fits()) return sketch;
  Way& way = tried_.at(SettingsText(sketch.variant.overrides, ";"));
  KnownJob& known = KnownJobOf(way);
  if (const std::optional<Way>& same = known.ways[kTimed]) {
    way.variant.status = same->variant.status;
    StepTime{same->variant.cost.seconds, same->variant.cost.known}.Fill(way.variant.cost);
    way.timed = same->timed;
    return way;
  }
  MadeDraft made = ahead_.Take({known.name, &known.job, Depth::kTimedIfFits});
  if (made.sketch_time) {
    made.sketch_time->Fill(way.variant.cost);
    way.timed = true;
  } else {
    way.variant.status = made.draft.status();
    if (made.draft.ok()) Time(known.job, *made.draft, way);
  }
  ahead_.Keep(known.name, std::move(made));
  known.ways[kTimed] = way;
  return way;
}

const Way& Ways::Exact(const Way& sketch) {
  if (sketch.exact || !sketch.variant.status.ok()) return sketch;
  Way& way = tried_.at(SettingsText(sketch.variant.overrides, ";"));
  KnownJob& known = KnownJobOf(way);
  if (const std::optional<Way>& same = known.ways[kExact]) {
    TakeResults(*same, way);
    return way;
  }
  MadeDraft made = TakePlaced(known, Depth::kSketched);
  Set(made, way);
  if (made.draft.ok() && way.fits()) Time(known.job, *made.draft, way);
  known.ways[kExact] = way;
  return way;
}

absl::StatusOr<Accumulation> Ways::AccumulationWith(const std::vector<Override>& overrides) {
  SHALE_ASSIGN_OR_RETURN(KnownJob * known, KnownJobWith(overrides));
  if (const std::optional<Way>& same = known->ways[kExact]) return same->variant.accumulation;
  const MadeDraft made = TakePlaced(*known, Depth::kSketched);
  SHALE_RETURN_IF_ERROR(made.draft.status());
  return made.draft->options.accumulation;
}

std::vector<Variant> Ways::PlannedWith(const std::vector<std::vector<Override>>& all) {
  std::vector<DraftsAhead::Wanted> wanted;
  for (const std::vector<Override>& overrides : all) {
    const absl::StatusOr<KnownJob*> known = KnownJobWith(overrides);
    if (known.ok()) wanted.push_back({(*known)->name, &(*known)->job, Depth::kPlaced});
  }
  if (has_threads()) ahead_.Prepare(std::move(wanted));
  std::vector<Variant> planned;
  for (const std::vector<Override>& overrides : all) {
    Way way{.variant = {.overrides = overrides}};
    const absl::StatusOr<KnownJob*> known = KnownJobWith(overrides);
    way.variant.status = known.status();
    if (known.ok()) {
      MadeDraft made = TakePlaced(**known, Depth::kPlaced);
      Set(made, way);
      if (made.draft.ok()) Time((*known)->job, *made.draft, way);
    }
    planned.push_back(std::move(way.variant));
  }
  return planned;
}

void Ways::Prepare(const std::vector<Choices>& all, Depth depth) {
  std::vector<std::pair<Choices, Depth>> wanted;
  for (const Choices& choices : all) wanted.emplace_back(choices, depth);
  Prepare(wanted);
}

void Ways::Prepare(const std::vector<std::pair<Choices, Depth>>& all) {
  if (!has_threads()) return;
  if (ended()) return ahead_.Prepare({});
  const auto is_known = [](const Way& way, Depth depth) {
    if (way.exact || !way.variant.status.ok() || depth == Depth::kSketched) return true;
    if (depth == Depth::kTimedIfFits && !way.fits()) return true;
    return depth != Depth::kPlaced && way.timed;
  };
  std::vector<DraftsAhead::Wanted> wanted;
  for (const auto& [choices, depth] : all) {
    const absl::StatusOr<std::vector<Override>> overrides = OverridesOf(choices);
    if (!overrides.ok()) continue;
    const absl::StatusOr<KnownJob*> known = KnownJobWith(*overrides);
    if (!known.ok()) continue;
    const Way* latest = (*known)->latest();
    if (latest == nullptr || !is_known(*latest, depth)) wanted.push_back({(*known)->name, &(*known)->job, depth});
  }
  ahead_.Prepare(std::move(wanted));
}

bool Ways::SketchFits(const Choices& choices) {
  const absl::StatusOr<std::vector<Override>> overrides = OverridesOf(choices);
  if (!overrides.ok() || ended()) return false;
  const auto found = tried_.find(SettingsText(*overrides, ";"));
  if (found != tried_.end()) return found->second.fits();
  const absl::StatusOr<KnownJob*> known = KnownJobWith(*overrides);
  if (!known.ok()) return false;
  if (const std::optional<Way>& same = (*known)->ways[kSketch]) return same->fits();
  MadeDraft made = ahead_.Take({(*known)->name, &(*known)->job, Depth::kSketched});
  const bool fits = made.draft.ok() && made.draft->fits;
  ahead_.Keep((*known)->name, std::move(made));
  return fits;
}

void Ways::Make(const Job& job, Depth depth, MadeDraft& made) {
  if (!made.made) {
    made.made = true;
    made.draft = drafter_.Sketch(job);
    if (!made.draft.ok()) return;
    made.kept = KeptBySeveralUnits(made.draft->train.step.program);
    const int64_t budget = made.draft->budget.bytes;
    if (made.draft->fits && made.draft->cost.arena_bytes > budget - budget / kNearBudget) Place(job, made);
    const bool is_bounded = made.draft.ok() && made.draft->fits && !made.placed && !query_.seconds;
    if (is_bounded) made.least_seconds = drafter_.LeastSecondsOf(job, *made.draft);
  }
  if (!made.draft.ok() || query_.seconds) return;
  Draft& draft = *made.draft;
  if (made.placed ? draft.fits : depth == Depth::kTimed || (draft.fits && depth != Depth::kSketched)) {
    const StepTime time = drafter_.TimeOf(job, draft);
    if (!made.placed) made.sketch_time = time;
  }
  if (depth != Depth::kPlaced || made.placed) return;
  Place(job, made);
  if (made.draft.ok() && made.draft->fits) drafter_.TimeOf(job, *made.draft);
}

MadeDraft Ways::TakePlaced(const KnownJob& known, Depth depth) {
  MadeDraft made = ahead_.Take({known.name, &known.job, depth});
  if (made.draft.ok() && !made.placed) Place(known.job, made);
  return made;
}

void Ways::Place(const Job& job, MadeDraft& made) {
  made.placed = true;
  made.draft = drafter_.Place(job, *std::move(made.draft));
}

void Ways::Set(const MadeDraft& made, Way& way) {
  Variant& variant = way.variant;
  variant.status = made.draft.status();
  if (!made.draft.ok()) return;
  const Draft& draft = *made.draft;
  const StepTime time{variant.cost.seconds, variant.cost.known};
  variant.accumulation = draft.options.accumulation;
  variant.cost = draft.cost;
  time.Fill(variant.cost);
  variant.fits = draft.fits;
  budget_ = draft.budget;
  way.missing_bytes = draft.budget.Missing(draft.cost.arena_bytes, draft.cost.host_bytes);
  way.exact = way.exact || made.placed;
  if (way.kept.empty()) way.kept = made.kept;
}

void Ways::Time(const Job& job, Draft& draft, Way& way) {
  way.timed = true;
  if (!query_.seconds) {
    drafter_.TimeOf(job, draft).Fill(way.variant.cost);
    return;
  }
  DeriveWaits(draft.train.step.program, draft.train.memory);
  const absl::StatusOr<double> seconds = query_.seconds(job, draft);
  if (seconds.ok()) {
    StepTime{.seconds = *seconds, .known = 1}.Fill(way.variant.cost);
  } else {
    error_ = seconds.status();
  }
}

DraftsAhead::~DraftsAhead() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void DraftsAhead::StartThreads() {
  try {
    while (std::ssize(threads_) < most_threads_) threads_.emplace_back([this] { Help(); });
  } catch (const std::system_error&) {
    // The system refuses more threads. Those that run, at least the calling one, do the work.
  }
}

void DraftsAhead::Prepare(std::vector<Wanted> wanted) {
  if (threads_.empty() && !wanted.empty()) StartThreads();
  const std::lock_guard<std::mutex> lock(mutex_);
  queue_.clear();
  for (Ready& ready : ready_) ready.is_ahead = false;
  for (Wanted& one : wanted) {
    const auto is_same = [&](const Wanted& other) { return other.way == one.way; };
    const bool is_queued = std::any_of(queue_.begin(), queue_.end(), is_same);
    if (!is_queued && !running_.contains(one.way)) queue_.push_back(std::move(one));
  }
  changed_.notify_all();
}

MadeDraft DraftsAhead::Take(const Wanted& wanted) {
  MadeDraft made;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    std::erase_if(queue_, [&](const Wanted& other) { return other.way == wanted.way; });
    while (running_.contains(wanted.way)) {
      if (MayMake()) {
        MakeNext(lock);
      } else {
        changed_.wait(lock);
      }
    }
    made = TakeReady(wanted.way);
    changed_.notify_all();
  }
  make_(*wanted.job, wanted.depth, made);
  return made;
}

void DraftsAhead::Keep(const std::string& way, MadeDraft made) {
  Drafts forgotten;
  const std::lock_guard<std::mutex> lock(mutex_);
  forgotten = AddReady({way, std::move(made)});
}

void DraftsAhead::Help() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || MayMake(); });
    if (ends_) return;
    MakeNext(lock);
  }
}

void DraftsAhead::MakeNext(std::unique_lock<std::mutex>& lock) {
  const Wanted wanted = std::move(queue_.front());
  queue_.pop_front();
  MadeDraft made = TakeReady(wanted.way);
  running_.insert(wanted.way);
  lock.unlock();
  make_(*wanted.job, wanted.depth, made);
  lock.lock();
  running_.erase(wanted.way);
  Drafts forgotten = AddReady({wanted.way, std::move(made), /*is_ahead=*/true});
  changed_.notify_all();
  lock.unlock();
  forgotten.clear();
  lock.lock();
}

MadeDraft DraftsAhead::TakeReady(const std::string& way) {
  const auto found = std::find_if(ready_.begin(), ready_.end(), [&](const Ready& ready) { return ready.way == way; });
  if (found == ready_.end()) return {};
  MadeDraft made = std::move(found->made);
  ready_.erase(found);
  return made;
}

DraftsAhead::Drafts DraftsAhead::AddReady(Ready ready) {
  ready_.push_front(std::move(ready));
  Drafts forgotten;
  for (auto last = ready_.end(); last != ready_.begin() && Instructions(/*only_ahead=*/false) > kMostInstructions;) {
    --last;
    if (!last->is_ahead) forgotten.splice(forgotten.begin(), ready_, last++);
  }
  return forgotten;
}

int64_t DraftsAhead::Instructions(bool only_ahead) const {
  int64_t count = 0;
  for (const Ready& ready : ready_) {
    if (ready.is_ahead || !only_ahead) count += InstructionsOf(ready.made);
  }
  return count;
}

}  // namespace shale::internal
