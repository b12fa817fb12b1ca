#include "engine/step/compile.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/step/activations.h"
#include "engine/step/combination.h"
#include "engine/step/gather.h"
#include "engine/step/in_place.h"
#include "engine/step/offload.h"
#include "engine/step/reduce.h"
#include "engine/step/unit_emitter.h"
#include "engine/step/update.h"

namespace shale {
namespace {

// The buffers of a step that belong to no unit.
struct StepData {
  Tensor hyper, valid_tokens, loss_scale, logits;
};

class StepCompiler {
 public:
  StepCompiler(const ModelGraph& model, const StepOptions& options, const Ops& ops)
      : model_(model), options_(options), writer_(ops) {}

  absl::StatusOr<CompiledStep> Compile() {
    SHALE_ASSIGN_OR_RETURN(state_, DeclareState(model_, options_, writer_));
    for (const UnitGraph& unit : model_.units) writer_.program().units.push_back(unit.name);
    writer_.program().micro_batches = options_.micro_batches;
    PlanUnits();
    gatherer_.emplace(model_, options_, state_, GatherUses(), writer_);
    reducer_.emplace(model_, options_, state_, writer_);
    EmitBegin();
    if (layered_) {
      EmitLayered();
    } else {
      EmitBody();
    }
    writer_.BeginLoop(1);
    EmitEnd();
    CompiledStep compiled;
    compiled.state = std::move(state_);
    compiled.program = writer_.Finish();
    OffloadActivations(compiled.program, options_.activations.offload);
    WorkInPlace(compiled.program);
    return compiled;
  }

 private:
  int units() const { return static_cast<int>(model_.units.size()); }
  int last() const { return units() - 1; }
  bool training() const { return model_.mode == GraphMode::kTraining; }

  // Decides what is kept, and makes the buffers between units: in LAYERED a slot for every micro-batch.
  void PlanUnits() {
    layered_ = training() && options_.accumulation == Accumulation::kLayered;
    const int64_t slots = layered_ ? options_.micro_batches : 1;
    int64_t layers = 0;
    for (const UnitGraph& unit : model_.units) layers += unit.layer >= 0;
    for (int u = 0; u < units(); ++u) {
      const UnitGraph& unit = model_.units[u];
      kept_.push_back(DecideKept(unit, u == last(), options_.activations, layers));
      unit_buffers_.push_back(std::make_unique<UnitBuffers>(unit, kept_[u], slots, writer_));
      Tensor output, gradient;
      if (unit.output >= 0) {
        const Value& value = unit.values[unit.output];
        output = writer_.AddTensor(value.name, BufferCategory::kActivationBoundaries, value.tensor, slots);
        if (training()) {
          gradient = writer_.AddTensor(absl::StrCat(value.name, ".gradient"), BufferCategory::kActivationBoundaries,
                                       value.tensor, slots);
        }
      }
      outputs_.push_back(output);
      output_gradients_.push_back(gradient);
    }
  }

  // Forward of every unit, the last one with its backward; then backward of the others.
  std::vector<GatherUse> GatherUses() const {
    std::vector<GatherUse> uses;
    for (int u = 0; u < units(); ++u) {
      const bool both = training() && u == last();
      uses.push_back({u, Phase::kForward, GroupsRead(model_, model_.units[u], kept_[u], true, both)});
    }
    if (!training()) return uses;
    for (int u = last() - 1; u >= 0; --u) {
      uses.push_back({u, Phase::kBackward, GroupsRead(model_, model_.units[u], kept_[u], false, true)});
    }
    return uses;
  }

  void EmitBegin() {
    const auto data = [&](absl::string_view name, DType dtype, int64_t n) {
      return writer_.AddTensor(std::string(name), BufferCategory::kData, Tensor::Contiguous(dtype, {n}));
    };
    const EmitContext copy{.stream = StreamId::kCopy};
    if (model_.mode == GraphMode::kLogits) {
      data_.logits =
          writer_.AddTensor("logits", BufferCategory::kLossWorkspace,
                            Tensor::Contiguous(model_.compute_dtype, {model_.micro_batch, model_.vocabulary}));
      return;
    }
    data_.valid_tokens = data("valid_tokens", DType::kInt64, 1);
    writer_.Emit(copy, HostCopy{HostItem::kValidTokens, data_.valid_tokens});
    EmitAllReduce(options_.mesh, {.stream = StreamId::kReduce}, data_.valid_tokens, writer_);
    data_.loss_scale = data("loss_scale", DType::kFloat32, 1);
    writer_.Emit({}, Op(LossScale{.valid_tokens_1 = data_.valid_tokens, .scale_1 = data_.loss_scale}));
    if (!training()) return;
    data_.hyper = data("hyper", DType::kFloat32, kHyperSize);
    writer_.Emit(copy, HostCopy{HostItem::kHyper, data_.hyper});
    updater_.emplace(options_, state_, data_.hyper, data_.valid_tokens, writer_);
  }

  // SHARDED, NO_SYNC, and programs without gradients: a micro-batch runs through all units.
  void EmitBody() {
    writer_.BeginLoop(options_.micro_batches);
    int use = 0;
    for (int u = 0; u < units(); ++u) {
      gatherer_->Prepare(use);
      if (training() && u == last()) reducer_->BeginUnit(u, 0);
      EmitForward(u, use++);
      if (training() && u == last()) EndBackward(u, 0);
    }
    if (!training()) return;
    for (int u = last() - 1; u >= 0; --u) {
      gatherer_->Prepare(use);
      reducer_->BeginUnit(u, 0);
      EmitBackward(u, use++);
      EndBackward(u, 0);
    }
  }

  // LAYERED: all micro-batches run through a unit.
  void EmitLayered() {
    int use = 0;
    const auto loop = [&](int u, bool backward) {
      writer_.BeginLoop(1);
      gatherer_->Prepare(use);
      const bool gradients = backward || u == last();
      if (gradients) reducer_->BeginUnit(u, -1);
      writer_.BeginLoop(options_.micro_batches);
      if (backward) {
        EmitBackward(u, use++);
      } else {
        EmitForward(u, use++);
      }
      writer_.BeginLoop(1);
      if (gradients) EndBackward(u, -1);
    };
    for (int u = 0; u < units(); ++u) loop(u, false);
    for (int u = last() - 1; u >= 0; --u) loop(u, true);
  }

  void EmitForward(int u, int use) {
    UnitEmitter emitter = MakeEmitter(u, use);
    emitter.EmitForward();
    if (training() && u == last()) emitter.EmitBackward();
  }

  void EmitBackward(int u, int use) { MakeEmitter(u, use).EmitBackward(); }

  // Emits the reductions of a unit's gradients, and the updates that need not wait for the other units. `micro_batch`
  // is -1 outside of a loop over micro-batches.
  void EndBackward(int u, int micro_batch) {
    updater_->BeginReductions();
    updater_->EndReductions(reducer_->EndUnit(u, micro_batch), /*in_loop=*/micro_batch >= 0);
  }

  UnitEmitter MakeEmitter(int u, int use) {
    return UnitEmitter(
        model_.units[u], *unit_buffers_[u], u == last(), layered_ && options_.packs_once && options_.micro_batches > 1,
        {.unit = u, .micro_batch = 0}, [this, u, use](const Value& value) { return Resolve(u, use, value); },
        [this, u](Op& op, const std::vector<const Value*>& written) { return Accumulates(u, op, written); }, writer_);
  }

  Tensor Resolve(int u, int use, const Value& value) {
    const UnitGraph& unit = model_.units[u];
    switch (value.role) {
      case ValueRole::kActivation: return outputs_[u];
      case ValueRole::kUnitInput: return outputs_[u - 1];
      case ValueRole::kOutputGradient: return output_gradients_[u];
      case ValueRole::kGradient: return output_gradients_[u - 1];
      case ValueRole::kParameter: {
        const Parameter& parameter = model_.parameters[value.parameter];
        const ShardLayout::Placement* p = state_.groups[parameter.group].layout().Find(parameter.name);
        return gatherer_->Full(use, parameter.group).Slice(0, p->offset_elements, p->elements);
      }
      case ValueRole::kParameterGradient: return reducer_->Gradient(u, value.parameter);
      case ValueRole::kInputs: return Load(u, HostItem::kInputs, value);
      case ValueRole::kTargets: return Load(u, HostItem::kTargets, value);
      case ValueRole::kRows: return Load(u, HostItem::kRows, value);
      case ValueRole::kLossScale: return data_.loss_scale;
      case ValueRole::kLossTotal: return state_.totals.Slice(0, kTotalLoss, 1);
      case ValueRole::kLogits: return data_.logits;
    }
    SHALE_CHECK(false) << unit.name << ": " << value.name;
    return {};
  }

  // Brings data of the micro-batch to the device, for one iteration of one unit: nothing grows with K.
  Tensor Load(int u, HostItem item, const Value& value) {
    const Tensor device = writer_.AddTensor(value.name, BufferCategory::kData, value.tensor);
    writer_.Emit({.stream = StreamId::kCopy, .phase = Phase::kForward, .unit = u, .micro_batch = 0},
                 HostCopy{item, device});
    return device;
  }

  // Sets how an op adds up; returns Instruction::first_iteration_differs.
  bool Accumulates(int u, Op& op, const std::vector<const Value*>& written) {
    if (written.front()->role == ValueRole::kLossTotal) {
      SetAccumulate(op, true);
      return true;
    }
    std::vector<ParameterId> parameters;
    for (const Value* value : written) parameters.push_back(value->parameter);
    return reducer_->SetAccumulation(u, op, parameters);
  }

  void EmitEnd() {
    const EmitContext copy{.stream = StreamId::kCopy, .phase = Phase::kEnd};
    if (model_.mode == GraphMode::kLogits) {
      writer_.Emit(copy, HostCopy{HostItem::kLogits, data_.logits});
      return;
    }
    if (training()) {
      updater_->Finish();
    } else {
      EmitAllReduce(options_.mesh, {.stream = StreamId::kReduce, .phase = Phase::kEnd},
                    state_.totals.Slice(0, kTotalLoss, 1), writer_);
    }
    writer_.Emit(copy, HostCopy{HostItem::kTotals, state_.totals});
    writer_.Emit(copy, HostCopy{HostItem::kGlobalTokens, data_.valid_tokens});
  }

  const ModelGraph& model_;
  const StepOptions& options_;
  ProgramWriter writer_;
  JobState state_;
  StepData data_;
  bool layered_ = false;
  std::vector<std::vector<bool>> kept_;
  std::vector<std::unique_ptr<UnitBuffers>> unit_buffers_;
  std::vector<Tensor> outputs_, output_gradients_;  // By unit.
  std::optional<Gatherer> gatherer_;
  std::optional<Reducer> reducer_;
  std::optional<Updater> updater_;  // Only in training.
};

}  // namespace

absl::StatusOr<CompiledStep> CompileStep(const ModelGraph& model, const StepOptions& options, const Ops& ops) {
  SHALE_CHECK(options.accumulation != Accumulation::kAuto && options.micro_batches >= 1);
  SHALE_CHECK(options.mesh.shard >= 1 && options.mesh.replicate >= 1);
  SHALE_RETURN_IF_ERROR(CheckCombination(options.strategy, options.accumulation));
  return StepCompiler(model, options, ops).Compile();
}

absl::StatusOr<CompiledStep> CompileSnapshot(const ModelGraph& model, const StepOptions& options, const Ops& ops) {
  SHALE_CHECK(options.snapshot);
  ProgramWriter writer(ops);
  CompiledStep compiled;
  SHALE_ASSIGN_OR_RETURN(compiled.state, DeclareState(model, options, writer));
  const auto copy = [&](const Tensor& from, const Tensor& to) {
    if (from.present()) writer.Emit({.stream = StreamId::kCopy, .phase = Phase::kEnd}, Op(Copy{from, to}));
  };
  for (const GroupState& g : compiled.state.groups) {
    for (size_t i = 0; i < g.saved.states.size(); ++i) copy(g.saved.states[i], g.snapshot.states[i]);
    copy(g.saved.value, g.snapshot.value);
    copy(g.saved.high, g.snapshot.high);
    copy(g.saved.low, g.snapshot.low);
  }
  compiled.program = writer.Finish();
  return compiled;
}

}  // namespace shale
