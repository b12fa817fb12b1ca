#include "engine/compile/step/compile.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/gather.h"
#include "engine/compile/step/options_enums.h"
#include "engine/compile/step/passes.h"
#include "engine/compile/step/reduce.h"
#include "engine/compile/step/unit_emitter.h"
#include "engine/compile/step/update.h"
#include "engine/compile/step/visits.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/scalars.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Runs the passes that apply. Returns the errors of passes, and that of `limits`, which it looks at before each pass,
// if the work must end. `program` is then incomplete.
absl::Status RunPasses(const StepOptions& options, const JobState& state, const Ops& ops, const WorkLimits& limits,
                       StepProgram& program) {
  for (const Pass& pass : ListPasses(options, state, ops, limits, program)) {
    SHALE_RETURN_IF_ERROR(limits.Check());
    if (pass.applies) SHALE_RETURN_IF_ERROR(pass.run());
  }
  return limits.Check();
}

// Emits the plain program of a step, which the passes then change (engine/compile/step/passes.h): for each micro-batch
// and each visit of a unit, gather its parameters, compute, and reduce its gradients; at the end, update every group.
class StepCompiler {
 public:
  StepCompiler(const ModelGraph& model, const StepOptions& options, const Ops& ops, const WorkLimits& limits)
      : model_(model), options_(options), ops_(ops), limits_(limits) {}

  absl::StatusOr<CompiledStep> Compile() {
    SHALE_RETURN_IF_ERROR(Prepare());
    EmitBegin();
    SHALE_RETURN_IF_ERROR(EmitVisits());
    EmitEnd();
    CompiledStep compiled{.program = writer_.Finish(), .state = std::move(state_)};
    SHALE_RETURN_IF_ERROR(RunPasses(options_, compiled.state, ops_, limits_, compiled.program));
    return compiled;
  }

 private:
  int last() const { return static_cast<int>(model_.units.size()) - 1; }
  bool training() const { return model_.mode == GraphMode::kTraining; }
  bool weighted() const { return model_.target_weights != TargetWeights::kNone; }

  void EmitBegin() {
    if (model_.mode == GraphMode::kLogits) {
      logits_ = writer_.AddTensor("logits", BufferCategory::kLossWorkspace, model_.logits().tensor);
      if (model_.cache.positions > 0) ToDevice(StepItem::kBegins, model_.micro_batch);
      return;
    }
    const auto counted = [&](StepItem item) {
      const Tensor count = ToDevice(item, 1);
      EmitAllReduce(options_.mesh, {.stream = StreamId::kReduce}, count, writer_);
      return count;
    };
    const Tensor valid_tokens = counted(StepItem::kValidTokens);
    const Tensor weight_total = weighted() ? counted(StepItem::kWeightTotal) : Tensor();
    mean_factor_ = writer_.AddTensor("mean_factor", BufferCategory::kData, Tensor::Contiguous(DType::kFloat32, {1}));
    const bool over_weights = model_.target_weights == TargetWeights::kOverWeights;
    writer_.Emit({}, Op(MeanFactor{.valid_tokens_1 = valid_tokens,
                                   .factor_1 = mean_factor_,
                                   .weight_total_1 = over_weights ? weight_total : Tensor(),
                                   .loss_scale_3 = training() ? state_.loss_scale : Tensor()}));
    if (!training()) return;
    ToDevice(StepItem::kHyper, kHyperSize);
    updater_.emplace(options_, state_, data_of_step_, writer_);
  }

  // Emits the visits in order. In LAYERED each visit is a loop of its own over all micro-batches, before which its
  // parameters are gathered and after which its gradients are reduced. Otherwise (SHARDED, NO_SYNC and programs without
  // gradients) all visits are in one loop, and each iteration runs one micro-batch.
  absl::Status EmitVisits() {
    const auto begin_loop_of_visit = [this](int64_t repeat) {
      if (layered_) writer_.BeginLoop(repeat);
    };
    if (!layered_) writer_.BeginLoop(options_.micro_batches);
    for (const Visit& visit : visits_) {
      SHALE_RETURN_IF_ERROR(limits_.Check());
      const auto [u, work] = visit;
      begin_loop_of_visit(1);
      gatherer_->Gather(visit, GroupsRead(model_, model_.units[u], accesses_[u], plans_[u].kept, work));
      if (HasBackward(work)) reducer_->BeginUnit(u);
      begin_loop_of_visit(options_.micro_batches);
      Compute(visit);
      begin_loop_of_visit(1);
      if (HasBackward(work)) reducer_->Reduce(u);
    }
    return absl::OkStatus();
  }

  void Compute(const Visit& visit) {
    const auto [u, work] = visit;
    UnitEmitter emitter(
        model_.units[u], accesses_[u], plans_[u], u == last(), {.unit = u, .micro_batch = 0},
        [this, visit](const Value& value) { return Resolve(visit, value); },
        [this, u = u](Op& op, const std::vector<const Value*>& written) { return Accumulates(u, op, written); },
        writer_);
    emitter.Emit(work);
  }

  void EmitEnd() {
    writer_.BeginLoop(1);
    const EmitContext copy{.stream = StreamId::kCopy, .phase = Phase::kEnd};
    if (model_.mode == GraphMode::kLogits) {
      writer_.Emit(copy, StepItemCopy{StepItem::kLogits, logits_});
      return;
    }
    if (training()) {
      updater_->Emit();
    } else {
      EmitAllReduce(options_.mesh, {.stream = StreamId::kReduce, .phase = Phase::kEnd},
                    state_.totals.Slice(0, kTotalLoss, 1), writer_);
    }
    writer_.Emit(copy, StepItemCopy{StepItem::kTotals, state_.totals});
    writer_.Emit(copy, StepItemCopy{StepItem::kGlobalTokens, data_of_step_.at(StepItem::kValidTokens)});
    if (weighted()) writer_.Emit(copy, StepItemCopy{StepItem::kGlobalWeight, data_of_step_.at(StepItem::kWeightTotal)});
    if (training() && state_.loss_scale.present()) {
      writer_.Emit(copy, StepItemCopy{StepItem::kLossScale, state_.loss_scale});
    }
  }

  // Declares the buffers that all programs of the job share, decides what each visit does, and makes what emits it.
  absl::Status Prepare() {
    SHALE_ASSIGN_OR_RETURN(state_, DeclareState(model_, options_, writer_));
    DeclareCaches();
    size_t nodes = 0;
    for (const UnitGraph& unit : model_.units) {
      writer_.program().units.push_back(unit.name);
      nodes += unit.forward.size() + unit.backward.size();
    }
    writer_.program().instructions.reserve(2 * nodes);
    writer_.program().micro_batches = options_.micro_batches;
    SHALE_RETURN_IF_ERROR(PlanUnits());
    gatherer_.emplace(model_, options_, state_, writer_);
    reducer_.emplace(model_, options_, state_, writer_);
    return reducer_->CheckRoundings();
  }

  // Adds the persistent buffers of the cache, in the order of units. They follow those of the state, so that programs
  // without a cache have the state at the same addresses.
  void DeclareCaches() {
    for (int u = 0; u <= last(); ++u) {
      for (const Value& value : model_.units[u].values) {
        if (value.role != ValueRole::kCache) continue;
        caches_[{u, value.tensor.where.symbol}] =
            writer_.AddTensor(value.name, BufferCategory::kCache, value.tensor, 1, /*persistent=*/true);
      }
    }
  }

  // Decides the order of visits and what each unit keeps, and adds the buffers between units. In LAYERED, these buffers
  // and those of kept activations have one slot per micro-batch.
  absl::Status PlanUnits() {
    layered_ = training() && options_.accumulation == Accumulation::kLayered;
    const int64_t slots = layered_ ? options_.micro_batches : 1;
    accesses_.reserve(model_.units.size());
    plans_.reserve(model_.units.size());
    int64_t layers = 0;
    for (const UnitGraph& unit : model_.units) layers += unit.layer >= 0;
    const ActivationOptions& activations = options_.activations;
    std::vector<Segment> segments;
    if (training()) segments = SegmentsOf(activations.Chosen(layers), activations.segment_blocks);
    const std::vector<SegmentRole> places = SegmentRolesOf(model_, segments);
    visits_ = PlanVisits(places, FirstBackward(model_));
    for (int u = 0; u <= last(); ++u) {
      SHALE_RETURN_IF_ERROR(limits_.Check());
      const UnitGraph& unit = model_.units[u];
      const UnitAccesses& accesses = accesses_.emplace_back(unit);
      UnitPlan& plan = plans_.emplace_back();
      plan.slots = slots;
      plan.kept.resize(unit.values.size());
      if (places[u] != SegmentRole::kLast) plan.kept = DecideKept(unit, accesses, u == last(), activations, layers);
      plan.buffers.resize(unit.values.size());
      plan.runs_again = places[u] == SegmentRole::kInside;
      if (unit.output < 0) continue;
      const Value& value = unit.values[unit.output];
      const auto boundary = [&](absl::string_view suffix) {
        return writer_.AddTensor(absl::StrCat(value.name, suffix), BufferCategory::kActivationBoundaries, value.tensor,
                                 slots);
      };
      plan.output = boundary("");
      if (unit.output_gradient >= 0) plan.output_gradient = boundary(".gradient");
      plan.output_again = plan.runs_again ? boundary(".again") : plan.output;
    }
    return absl::OkStatus();
  }

  // Copies an item of the step, a vector of n elements, to the device.
  Tensor ToDevice(StepItem item, int64_t n) {
    const StepItemRow& row = RowOf(item);
    const Tensor device =
        writer_.AddTensor(std::string(row.name), BufferCategory::kData, Tensor::Contiguous(row.dtype, {n}));
    writer_.Emit({.stream = StreamId::kCopy}, StepItemCopy{item, device});
    return data_of_step_[item] = device;
  }

  // Returns the tensor of a unit's output in visits that do `work`: a visit of the unit, which writes it, or one of the
  // next unit, which reads it.
  const Tensor& Output(int unit, VisitWork work) const {
    const UnitPlan& plan = plans_[unit];
    return PhaseOf(work) == Phase::kForward ? plan.output : plan.output_again;
  }

  Tensor Resolve(const Visit& visit, const Value& value) {
    const auto [u, work] = visit;
    const UnitGraph& unit = model_.units[u];
    switch (value.role) {
      case ValueRole::kActivation: return Output(u, work);
      case ValueRole::kUnitInput: return Output(u - 1, work);
      case ValueRole::kOutputGradient: return plans_[u].output_gradient;
      case ValueRole::kGradient: return plans_[u - 1].output_gradient;
      case ValueRole::kParameter: {
        const Parameter& parameter = model_.parameters[value.parameter];
        const ShardLayout::PlacedParameter* p = state_.groups[parameter.group].layout().Find(parameter.name);
        return gatherer_->Full(parameter.group).Slice(0, p->offset_elements, p->elements);
      }
      case ValueRole::kParameterGradient: return reducer_->Gradient(u, value.parameter);
      case ValueRole::kData: return RowOf(value.item).per_micro_batch ? Load(u, value) : data_of_step_.at(value.item);
      case ValueRole::kCache: return caches_.at({u, value.tensor.where.symbol});
      case ValueRole::kMeanFactor: return mean_factor_;
      case ValueRole::kLossTotal: return state_.totals.Slice(0, kTotalLoss, 1);
      case ValueRole::kLogits: return logits_;
    }
    SHALE_CHECK(false) << unit.name << ": " << value.name;
    return {};
  }

  // Copies data of the micro-batch to the device, into a buffer that serves one iteration of one unit. Its size does
  // not depend on K.
  Tensor Load(int u, const Value& value) {
    const Tensor device = writer_.AddTensor(value.name, BufferCategory::kData, value.tensor);
    writer_.Emit({.stream = StreamId::kCopy, .phase = Phase::kForward, .unit = u, .micro_batch = 0},
                 StepItemCopy{value.item, device});
    return device;
  }

  // Sets whether an op accumulates into what it writes. Returns the value of Instruction::first_iteration_differs.
  bool Accumulates(int u, Op& op, const std::vector<const Value*>& written) {
    if (written.front()->role == ValueRole::kLossTotal) {
      SetAccumulate(op, true);
      return true;
    }
    std::vector<ParameterId> parameters;
    for (const Value* value : written) parameters.push_back(value->parameter);
    return reducer_->SetAccumulation(u, op, parameters);
  }

  const ModelGraph& model_;
  const StepOptions& options_;
  const Ops& ops_;
  const WorkLimits& limits_;
  ProgramWriter writer_;
  JobState state_;
  Tensor mean_factor_, logits_;
  DataOfStep data_of_step_;                           // From the host.
  std::map<std::pair<int, ValueId>, Tensor> caches_;  // By unit and value.
  bool layered_ = false;
  std::vector<UnitAccesses> accesses_;  // By unit.
  std::vector<UnitPlan> plans_;         // By unit.
  std::vector<Visit> visits_;           // In order.
  std::optional<Gatherer> gatherer_;
  std::optional<Reducer> reducer_;
  std::optional<Updater> updater_;  // Only in training.
};

}  // namespace

absl::StatusOr<CompiledStep> CompileStep(const ModelGraph& model, const StepOptions& options, const Ops& ops,
                                         const WorkLimits& limits) {
  const bool narrow = std::any_of(model.parameters.begin(), model.parameters.end(),
                                  [](const Parameter& p) { return !p.frozen && p.dtype != DType::kFloat32; });
  SHALE_RETURN_IF_ERROR(CheckStepOptions(options, narrow, /*has_host_ops=*/ops.host() != nullptr));
  return StepCompiler(model, options, ops, limits).Compile();
}

absl::StatusOr<CompiledStep> CompileSnapshot(const ModelGraph& model, const StepOptions& options, const Ops& ops) {
  SHALE_CHECK(options.snapshot);
  ProgramWriter writer;
  CompiledStep compiled;
  SHALE_ASSIGN_OR_RETURN(compiled.state, DeclareState(model, options, writer));
  const auto copy = [&](const Tensor& from, const Tensor& to) {
    if (!from.present()) return;
    const EmitContext context{.stream = StreamId::kCopy, .phase = Phase::kEnd};
    if (writer.IsOnHost(from) && options.updates_on_host()) {
      writer.Emit({.stream = StreamId::kHost, .phase = Phase::kEnd}, Op(Copy{from, to}));
    } else if (writer.IsOnHost(from)) {
      // Only transfers reach host memory, so the copy goes through the arena, one tensor at a time.
      const Buffer buffer = writer.program().buffers[from.where.symbol];
      const Tensor device = writer.AddTensor(absl::StrCat(buffer.name, ".fetched"), buffer.category, from);
      writer.Emit(context, Transfer{.device = device, .host = from, .to_host = false});
      writer.Emit(context, Transfer{.device = device, .host = to, .to_host = true});
    } else {
      writer.Emit(context, Op(Copy{from, to}));
    }
  };
  for (const GroupState& g : compiled.state.groups) {
    if (g.frozen) continue;
    for (size_t i = 0; i < g.saved.states.size(); ++i) copy(g.saved.states[i], g.snapshot.states[i]);
    copy(g.saved.value, g.snapshot.value);
    copy(g.saved.high, g.snapshot.high);
    copy(g.saved.low, g.snapshot.low);
  }
  compiled.program = writer.Finish();
  SHALE_RETURN_IF_ERROR(AddScratch(compiled.program, ops));
  return compiled;
}

}  // namespace shale
