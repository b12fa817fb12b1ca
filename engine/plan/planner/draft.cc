#include "engine/plan/planner/draft.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/model/model.h"
#include "engine/compile/step/options_enums.h"
#include "engine/compile/step/passes.h"
#include "engine/plan/planner/accumulations.h"
#include "engine/plan/planner/generation.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/time/prediction.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"

namespace shale {

absl::Status CheckSameParameters(const ModelGraph& train, const ModelGraph& other, absl::string_view mode) {
  const auto same = [](const Parameter& a, const Parameter& b) {
    return a.name == b.name && a.shape == b.shape && a.group == b.group;
  };
  const auto [a, b] = std::mismatch(train.parameters.begin(), train.parameters.end(), other.parameters.begin(),
                                    other.parameters.end(), same);
  if (a == train.parameters.end() && b == other.parameters.end()) return absl::OkStatus();
  const std::string& name = a != train.parameters.end() ? a->name : b->name;
  return absl::InvalidArgumentError(absl::StrCat("the model's parameters for training and for ", mode,
                                                 " differ, first at ", name,
                                                 "; a model must have the same parameters in every mode"));
}

namespace {

// Builds the graphs of generation: one sequence, on every rank.
absl::StatusOr<std::vector<ModelGraph>> BuildGenerate(const Job& job, const ModelGraph& train,
                                                      const WorkLimits& limits) {
  constexpr absl::string_view kField = "runtime.generate: ";
  if (NeedsOf(train).ElementsOf(StepItem::kFeatures) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        kField, "the model reads features, and only a model that reads tokens can generate; leave it out"));
  }
  absl::StatusOr<std::vector<ModelGraph>> graphs = BuildGeneration(job, {}, limits);
  if (!graphs.ok()) return absl::Status(graphs.status().code(), absl::StrCat(kField, graphs.status().message()));
  for (const ModelGraph& graph : *graphs) SHALE_RETURN_IF_ERROR(CheckSameParameters(train, graph, "generation"));
  return graphs;
}

}  // namespace

absl::StatusOr<ModelGraph> BuildGraph(const Job& job, GraphMode mode, const WorkLimits& limits) {
  SHALE_RETURN_IF_ERROR(limits.Check());
  SHALE_RETURN_IF_ERROR(CheckGraphSize(job, limits));
  return BuildModel(job.model, GraphOptionsFor(job, mode));
}

namespace {

// Compiles the program of `graph`, unless the options exclude each other or the program would be too large.
absl::StatusOr<CompiledStep> CompileChecked(const ModelGraph& graph, const StepOptions& options, const Ops& ops,
                                            const WorkLimits& limits) {
  SHALE_RETURN_IF_ERROR(CheckCombination(options.strategy, options.accumulation));
  SHALE_RETURN_IF_ERROR(CheckProgramSize(graph, options));
  SHALE_ASSIGN_OR_RETURN(CompiledStep step, CompileStep(graph, options, ops, limits));
  SHALE_RETURN_IF_ERROR(limits.Check());
  return step;
}

}  // namespace

absl::StatusOr<PlannedStep> CompileAndPlan(const ModelGraph& graph, const StepOptions& options, const Ops& ops,
                                           const MemoryPlanOptions& memory_options, const WorkLimits& limits) {
  PlannedStep planned;
  SHALE_ASSIGN_OR_RETURN(planned.step, CompileChecked(graph, options, ops, limits));
  SHALE_ASSIGN_OR_RETURN(planned.memory, PlanMemory(planned.step.program, memory_options));
  return planned;
}

bool PacksOnce(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
    return matmul != nullptr && matmul->packed_b.present();
  });
}

bool QuantizesOnce(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    return op != nullptr && (op->Is<QuantizeFloat8>() || op->Is<TransposeFloat8>()) && instruction.micro_batch < 0;
  });
}

bool GathersFloat8(const StepProgram& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
    const Op* op = std::get_if<Op>(&instruction.action);
    return op != nullptr && op->Is<QuantizeShard>();
  });
}

absl::StatusOr<Budget> BudgetOf(const Job& job, const DefaultBudget& default_budget) {
  Budget budget;
  if (default_budget) {
    const absl::StatusOr<Budget> found = default_budget(job.sharding.ranks);
    if (found.ok()) {
      budget = *found;
    } else if (job.memory.budget_bytes == 0) {
      return found.status();
    }
  }
  if (job.memory.budget_bytes > 0) {
    budget.bytes = job.memory.budget_bytes;
    budget.origin.clear();
  }
  if (job.memory.host_budget_bytes > 0) {
    budget.host_bytes = job.memory.host_budget_bytes;
    budget.host_origin.clear();
  }
  return budget;
}

namespace {

// Builds what the graphs lack beside that of training.
absl::Status BuildOtherGraphs(const Job& job, const WorkLimits& limits, JobGraphs& graphs) {
  if (!graphs.evaluate.units.empty()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(ModelGraph evaluate, BuildGraph(job, GraphMode::kEvaluation, limits));
  SHALE_RETURN_IF_ERROR(CheckSameParameters(graphs.train, evaluate, "evaluation"));
  if (job.runtime.generate) {
    SHALE_ASSIGN_OR_RETURN(graphs.generate, BuildGenerate(job, graphs.train, limits));
  }
  graphs.evaluate = std::move(evaluate);
  return limits.Check();
}

// How many graphs a Drafter keeps. Searches vary micro-batch and chunks of the loss, which few graphs have in common.
constexpr size_t kMostGraphs = 48;

// Adds what else follows from the bytes of a draft and from its training program.
void Summarize(Draft& draft) {
  draft.fits = draft.budget.Holds(draft.cost.arena_bytes, draft.cost.host_bytes);
  const StepProgram& program = draft.train.step.program;
  draft.cost.sent_bytes = SummarizeCommunication(program, draft.options.mesh).sent_bytes;
  draft.cost.flops = SummarizeFlops(program);
}

// Compiles the training program of a draft that has graphs and options (Drafter::Sketch).
absl::Status CompileTraining(Draft& draft, const Ops& ops, const WorkLimits& limits) {
  SHALE_ASSIGN_OR_RETURN(draft.train.step, CompileChecked(draft.graphs->train, draft.options, ops, limits));
  SHALE_ASSIGN_OR_RETURN(draft.train.memory, PlanWithoutSharing(draft.train.step.program));
  const MemoryPlan& least = draft.train.memory;
  draft.cost = {.arena_bytes = least.lower_bound_bytes, .host_bytes = least.lower_bound_host_bytes};
  Summarize(draft);
  return absl::OkStatus();
}

// Plans the memory of a compiled training program. The cost is that of this program.
absl::Status PlaceTraining(Draft& draft) {
  SHALE_ASSIGN_OR_RETURN(draft.train.memory, PlanMemory(draft.train.step.program, {}));
  draft.time.reset();
  draft.cost = {.arena_bytes = draft.train.memory.peak_bytes, .host_bytes = draft.train.memory.host_bytes};
  return absl::OkStatus();
}

// Lets the cost have room for a program of so many bytes.
void Count(int64_t arena_bytes, int64_t host_bytes, Cost& cost) {
  cost.arena_bytes = std::max(cost.arena_bytes, arena_bytes);
  cost.host_bytes = std::max(cost.host_bytes, host_bytes);
}

// Compiles and plans the programs beside that of training, and counts them in the cost.
absl::Status CompileOthers(Draft& draft, const Ops& ops, const WorkLimits& limits) {
  StepOptions once = draft.options;
  once.micro_batches = 1;
  SHALE_ASSIGN_OR_RETURN(draft.evaluate, CompileAndPlan(draft.graphs->evaluate, once, ops, {}, limits));
  Count(draft.evaluate.memory.peak_bytes, draft.evaluate.memory.host_bytes, draft.cost);
  draft.generate.clear();
  draft.generate.reserve(draft.graphs->generate.size());
  for (const ModelGraph& graph : draft.graphs->generate) {
    SHALE_ASSIGN_OR_RETURN(PlannedStep planned, CompileAndPlan(graph, once, ops, {}, limits));
    Count(planned.memory.peak_bytes, planned.memory.host_bytes, draft.cost);
    draft.generate.push_back(std::move(planned));
  }
  return absl::OkStatus();
}

// Compiles and plans all programs of a draft that has graphs and options.
absl::Status CompilePrograms(Draft& draft, const Ops& ops, const WorkLimits& limits) {
  SHALE_ASSIGN_OR_RETURN(draft.train.step, CompileChecked(draft.graphs->train, draft.options, ops, limits));
  SHALE_RETURN_IF_ERROR(PlaceTraining(draft));
  SHALE_RETURN_IF_ERROR(CompileOthers(draft, ops, limits));
  Summarize(draft);
  return absl::OkStatus();
}

// Returns by how many bytes a draft exceeds its budget.
double Missing(const Draft& draft) { return draft.budget.Missing(draft.cost.arena_bytes, draft.cost.host_bytes); }

// Returns the key by which drafts are compared; the smallest is best. A draft that fits comes before one that does not.
// Then the one that sends least is best, then the one that exceeds the budget least, then the one that needs the least
// memory. What a draft sends does not count if it does not fit. With one micro-batch a step all accumulations send the
// same, and the bytes by which they differ do not count if they fit: LAYERED may need a little less, and costs a loop
// for each visit and the graphs of a single rank (UsesGraphs).
auto KeyOf(const Draft& draft) {
  const Cost& cost = draft.cost;
  return std::make_tuple(!draft.fits, draft.fits ? cost.sent_bytes : 0, Missing(draft),
                         draft.fits && draft.options.micro_batches == 1 ? 0 : cost.arena_bytes);
}

Variant VariantOf(std::vector<Override> overrides, std::string caveat, const absl::StatusOr<Draft>& draft) {
  Variant variant{.overrides = std::move(overrides), .caveat = std::move(caveat), .status = draft.status()};
  if (!draft.ok()) return variant;
  variant.accumulation = draft->options.accumulation;
  variant.cost = draft->cost;
  variant.fits = draft->fits;
  return variant;
}

}  // namespace

Drafter::Drafter(const Job& job, const Machine& machine, const WorkLimits& limits, JobWith job_with)
    : job_(job), machine_(machine), limits_(limits), job_with_(std::move(job_with)) {}

const Ops& Drafter::OpsOf(int64_t ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Ops>& ops = ops_[{ranks, std::this_thread::get_id()}];
  if (ops == nullptr) ops = machine_.create_ops(ranks);
  return *ops;
}

absl::StatusOr<Job> Drafter::With(const std::vector<Override>& overrides) const {
  if (job_with_) return job_with_(overrides);
  if (overrides.empty()) return job_;
  std::vector<std::string> texts;
  for (const Override& setting : overrides) texts.push_back(setting.text());
  return WithOverrides(job_, texts);
}

absl::StatusOr<std::shared_ptr<JobGraphs>> Drafter::GraphsOf(const Job& job) {
  if (job.sharding.ranks > machine_.most_ranks) {
    return absl::InvalidArgumentError(absl::StrCat("sharding.ranks: found ", job.sharding.ranks,
                                                   "; the machine has room for at most ", machine_.most_ranks));
  }
  const GraphOptions options = GraphOptionsFor(job, GraphMode::kTraining);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const BuiltGraphs& built : graphs_) {
    if (built.options == options && built.model == job.model) return built.graphs;
  }
  auto graphs = std::make_shared<JobGraphs>();
  SHALE_ASSIGN_OR_RETURN(graphs->train, BuildGraph(job, GraphMode::kTraining, limits_));
  SHALE_RETURN_IF_ERROR(limits_.Check());
  if (graphs_.empty()) SHALE_RETURN_IF_ERROR(CheckPatterns(job, graphs->train, limits_));
  if (graphs_.size() < kMostGraphs) graphs_.push_back({options, job.model, graphs});
  return graphs;
}

namespace {

bool PreparesOnce(const StepProgram& program) { return PacksOnce(program) || QuantizesOnce(program); }

}  // namespace

// Compiles with prepares_weights_once if the budget has room for what that keeps, else without.
absl::StatusOr<Draft> Drafter::CompileAccumulation(const Draft& wanted, Accumulation accumulation, const Ops& ops,
                                                   CompilePart compile) {
  Draft draft{.graphs = wanted.graphs, .options = wanted.options, .budget = wanted.budget};
  draft.options.accumulation = accumulation;
  SHALE_RETURN_IF_ERROR(compile(draft, ops, limits_));
  if (!draft.fits && PreparesOnce(draft.train.step.program)) {
    draft.options.prepares_weights_once = false;
    SHALE_RETURN_IF_ERROR(compile(draft, ops, limits_));
  }
  return draft;
}

absl::StatusOr<Draft> Drafter::CompileBest(const Job& job, std::shared_ptr<JobGraphs> graphs, CompilePart compile,
                                           bool first_that_fits) {
  Draft wanted{.graphs = std::move(graphs)};
  wanted.options = StepOptionsFor(job);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    SHALE_ASSIGN_OR_RETURN(wanted.budget, BudgetOf(job, machine_.default_budget));
  }
  const Ops& ops = OpsOf(job.sharding.ranks);
  const Accumulation named = wanted.options.accumulation;
  const bool is_open = named == Accumulation::kAuto;
  const bool all_alike = wanted.options.micro_batches == 1;  // See KeyOf.
  std::vector<Draft> drafts;
  std::optional<size_t> best, fastest;  // The best of them by KeyOf, and the fastest that fits.
  std::vector<Variant> candidates;
  // Without measured works, all seconds are estimates.
  double least_known = machine_.profile != nullptr && !machine_.profile->works().empty() ? 1 : 0;
  const ToCompile plan =
      first_that_fits && is_open ? InOrder(wanted.options, wanted.graphs->train, wanted.budget) : ToCompile();
  std::vector<Accumulation> all = plan.order;
  if (all.empty()) all = is_open ? AccumulationsFor(wanted.options.gradient_shards) : std::vector{named};
  for (Accumulation accumulation : all) {
    if (best && accumulation == Accumulation::kLayered && plan.layered_misses > Missing(drafts[*best])) continue;
    absl::StatusOr<Draft> draft = CompileAccumulation(wanted, accumulation, ops, compile);
    SHALE_RETURN_IF_ERROR(limits_.Check());
    // Once the seconds of one are hardly known, those of the others decide nothing.
    if (is_open && least_known >= kCoveredShare && !(first_that_fits && all_alike) && draft.ok() && draft->fits) {
      const StepTime time = TimeOf(job, *draft);
      time.Fill(draft->cost);
      least_known = std::min(least_known, time.known);
    }
    candidates.push_back(VariantOf({{"sharding.accumulation", std::string(ToString(accumulation))}}, "", draft));
    candidates.back().accumulation = accumulation;
    if (!draft.ok()) continue;
    const size_t last = drafts.size();
    drafts.push_back(*std::move(draft));
    // Of equals, the first in the order of the enum.
    const auto key = [&](size_t i) { return std::make_pair(KeyOf(drafts[i]), drafts[i].options.accumulation); };
    const auto seconds = [&](size_t i) {
      return std::make_pair(drafts[i].time->seconds, drafts[i].options.accumulation);
    };
    if (!best || key(last) < key(*best)) best = last;
    if (drafts[last].time && (!fastest || seconds(last) < seconds(*fastest))) fastest = last;
    if (!plan.order.empty() && drafts[last].fits && (all_alike || least_known < kCoveredShare)) break;
  }
  if (!best) return candidates.front().status;
  const bool by_seconds = fastest && least_known >= kCoveredShare;
  if (!by_seconds) {
    for (Variant& candidate : candidates) candidate.cost.seconds = 0;  // Nobody shall compare what is hardly known.
  }
  Draft draft = std::move(drafts[by_seconds && !all_alike ? *fastest : *best]);
  draft.by_seconds = by_seconds;
  draft.candidates = std::move(candidates);
  return draft;
}

absl::StatusOr<Draft> Drafter::Compile(const std::vector<Override>& overrides) {
  const auto compile = [&]() -> absl::StatusOr<Draft> {
    SHALE_RETURN_IF_ERROR(limits_.Check());
    if (overrides.empty()) return CompileWhole(job_);
    SHALE_ASSIGN_OR_RETURN(const Job job, With(overrides));
    return CompileWhole(job);
  };
  absl::StatusOr<Draft> draft = compile();
  stopped_ = stopped_ || !limits_.Check().ok();
  return draft;
}

absl::StatusOr<Draft> Drafter::Sketch(const Job& job) {
  SHALE_RETURN_IF_ERROR(limits_.Check());
  SHALE_ASSIGN_OR_RETURN(std::shared_ptr<JobGraphs> graphs, GraphsOf(job));
  return CompileBest(job, std::move(graphs), CompileTraining, /*first_that_fits=*/true);
}

absl::Status Drafter::BuildOthers(const Job& job, JobGraphs& graphs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return BuildOtherGraphs(job, limits_, graphs);
}

absl::StatusOr<Draft> Drafter::CompileWhole(const Job& job) {
  SHALE_ASSIGN_OR_RETURN(std::shared_ptr<JobGraphs> graphs, GraphsOf(job));
  SHALE_RETURN_IF_ERROR(BuildOthers(job, *graphs));
  return CompileBest(job, std::move(graphs), CompilePrograms);
}

absl::Status Drafter::CountOthers(const Job& job, const Ops& ops, Draft& draft) {
  // They run forward alone, of one micro-batch: nothing is kept for backward, nor recomputed.
  OtherBytes others{.job = job};
  others.job.activation_checkpointing = {};
  others.job.sharding.accumulation = draft.options.accumulation;
  const auto find = [&] {
    return std::find_if(others_.begin(), others_.end(), [&](const OtherBytes& o) { return o.job == others.job; });
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = find(); known != others_.end()) {
      Count(known->arena_bytes, known->host_bytes, draft.cost);
      return absl::OkStatus();
    }
  }
  const Cost training = std::exchange(draft.cost, {});
  SHALE_RETURN_IF_ERROR(CompileOthers(draft, ops, limits_));
  others.arena_bytes = draft.cost.arena_bytes;
  others.host_bytes = draft.cost.host_bytes;
  Count(training.arena_bytes, training.host_bytes, draft.cost);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (find() == others_.end()) others_.push_back(std::move(others));
  return absl::OkStatus();
}

absl::StatusOr<Draft> Drafter::Place(const Job& job, Draft sketch) {
  const bool is_open = job.sharding.accumulation == Accumulation::kAuto;
  const AccumulationOrder order = is_open ? OrderOf(sketch.options, sketch.graphs->train) : AccumulationOrder();
  const bool all_alike = sketch.options.micro_batches == 1;  // See KeyOf.
  // The accumulation that is best by its least bytes, or by the seconds of a sketch, need not be best by its plan.
  if (is_open && (order.all.empty() || (sketch.by_seconds && !all_alike))) return CompileWhole(job);
  SHALE_RETURN_IF_ERROR(BuildOthers(job, *sketch.graphs));
  SHALE_RETURN_IF_ERROR(PlaceTraining(sketch));
  SHALE_RETURN_IF_ERROR(CountOthers(job, OpsOf(job.sharding.ranks), sketch));
  Summarize(sketch);
  const bool is_measured = machine_.profile != nullptr && !machine_.profile->works().empty();
  if (is_open && is_measured && !all_alike && TimeOf(job, sketch).known >= kCoveredShare) return CompileWhole(job);
  // Weights that every micro-batch quantizes or packs may fit where those that are kept do not.
  if (!sketch.fits && (is_open || PreparesOnce(sketch.train.step.program))) return CompileWhole(job);
  if (!order.is_near) return sketch;
  Job decided = job;
  for (const Accumulation other : order.all) {
    if (other == sketch.options.accumulation) continue;
    decided.sharding.accumulation = other;
    absl::StatusOr<Draft> draft = Sketch(decided);
    if (!draft.ok() || !(KeyOf(*draft) < KeyOf(sketch))) continue;
    draft = Place(decided, *std::move(draft));
    if (draft.ok() && KeyOf(*draft) < KeyOf(sketch)) sketch = *std::move(draft);
  }
  return sketch;
}

Predictor& Drafter::PredictorOf() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (predictor_ == nullptr) predictor_ = std::make_unique<Predictor>(*machine_.profile);
  return *predictor_;
}

// As if each host had one process: a job has the same bits in any number of processes, so what is decided by seconds
// does not depend on them.
StepFacts Drafter::FactsOf(const Job& job, const Draft& draft) const {
  StepFacts facts = FactsOfSeconds(job, draft.options.mesh, *machine_.profile, {.hosts = machine_.hosts});
  facts.graphs = UsesGraphs(job, draft.options.accumulation);  // That of `job` may be AUTO.
  return facts;
}

const ProgramWorks& Drafter::WorksOf(const StepFacts& facts, Draft& draft) {
  if (draft.works == nullptr) draft.works = PredictorOf().WorksOf(draft.train.step.program, facts);
  return *draft.works;
}

StepTime Drafter::TimeOf(const Job& job, Draft& draft) {
  if (machine_.profile == nullptr) return {};
  if (draft.time) return *draft.time;
  DeriveWaits(draft.train.step.program, draft.train.memory);
  const StepFacts facts = FactsOf(job, draft);
  const StepSeconds step = PredictorOf().SecondsOf(draft.train.step.program, WorksOf(facts, draft), facts);
  return draft.time.emplace(StepTime{.seconds = step.seconds, .known = CoveredShare(step.known)});
}

double Drafter::LeastSecondsOf(const Job& job, Draft& draft) {
  if (machine_.profile == nullptr) return 0;
  return PredictorOf().LeastSecondsOf(draft.train.step.program, WorksOf(FactsOf(job, draft), draft));
}

Variant Drafter::Timed(std::vector<Override> overrides, std::string caveat, absl::StatusOr<Draft> draft) {
  Variant variant = VariantOf(overrides, std::move(caveat), draft);
  if (!draft.ok() || machine_.profile == nullptr) return variant;
  if (const absl::StatusOr<Job> job = With(overrides); job.ok()) TimeOf(*job, *draft).Fill(variant.cost);
  return variant;
}

Variant Drafter::Try(std::vector<Override> overrides, std::string caveat) {
  absl::StatusOr<Draft> draft = Compile(overrides);
  return Timed(std::move(overrides), std::move(caveat), std::move(draft));
}

Variant Drafter::TryWithAmpleScratch(std::vector<Override> overrides) {
  absl::StatusOr<Draft> draft = Compile(overrides);
  if (draft.ok()) {
    const absl::Status status = TakeAmpleScratch(*draft, OpsOf(draft->options.mesh.ranks()));
    if (!status.ok()) draft = status;
  }
  return Timed(std::move(overrides), "", std::move(draft));
}

absl::Status TakeAmpleScratch(Draft& draft, const Ops& ops) {
  constexpr int64_t kMostScratch = int64_t{2} << 30, kScratchShare = 32;
  if (!draft.fits) return absl::OkStatus();
  const int64_t most = std::min(kMostScratch, draft.budget.bytes / kScratchShare);
  std::optional<StepProgram> ample = WithAmpleScratch(draft.train.step.program, ops, most);
  if (!ample) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(MemoryPlan memory, PlanMemory(*ample, {}));
  const int64_t arena_bytes = std::max(draft.cost.arena_bytes, memory.peak_bytes);
  if (!draft.budget.Holds(arena_bytes, draft.cost.host_bytes)) return absl::OkStatus();
  draft.train.step.program = *std::move(ample);
  draft.train.memory = std::move(memory);
  draft.time.reset();
  draft.works.reset();
  draft.cost.arena_bytes = arena_bytes;
  return absl::OkStatus();
}

}  // namespace shale
