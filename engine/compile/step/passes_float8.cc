// GatherFloat8 and QuantizeOnce: the passes that decide where weights become fp8.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Makes all-gathers move weights in fp8.
class Float8Gatherer {
 public:
  Float8Gatherer(StepProgram& program, const JobState& state)
      : program_(program), state_(state), edit_(program), places_(program.buffers.size()) {}

  void Run() {
    FindGathers();
    if (!shards_.empty()) RefuseOtherReaders();
    std::vector<Shard*> shards;  // In the order of their first all-gathers.
    for (auto& [weight, shard] : shards_) shards.push_back(&shard);
    std::sort(shards.begin(), shards.end(),
              [](const Shard* a, const Shard* b) { return a->gathers.front() < b->gathers.front(); });
    if (shards.empty()) return;
    QuantizeShards(shards);
    for (const Shard* shard : shards) {
      for (const InstructionId id : shard->gathers) GatherCodes(*shard, id);
    }
    for (InstructionId id = 0; id < std::ssize(program_.instructions); ++id) Change(id);
    edit_.Apply();
  }

 private:
  // The rank's shard of a flat group, and what each rank knows of its parameters.
  struct Shard {
    const GroupState* group = nullptr;
    std::vector<InstructionId> gathers;
    Tensor codes_P, scales_Q;
    int64_t parameters() const { return std::ssize(group->layout().parameters()); }
  };

  // What stands where a buffer of the program before was read.
  struct Place {
    BufferId buffer = -1;  // -1: the buffer itself.
    int64_t offset_bytes = 0;
  };

  // Finds the groups whose shards lie in the arena and are gathered into transient buffers.
  void FindGathers() {
    std::map<BufferId, const GroupState*> groups;
    for (const GroupState& g : state_.groups) {
      const bool gathered = !g.full_weight.present() && g.layout().shards() > 1;
      if (g.float8 && gathered) groups[g.own_weight.where.symbol] = &g;
    }
    if (groups.empty()) return;
    for (InstructionId id = 0; id < std::ssize(program_.instructions); ++id) {
      const auto* gather = std::get_if<Collective>(&program_.instructions[id].action);
      if (gather == nullptr || gather->kind != CollectiveKind::kAllGather) continue;
      const BufferId weight = gather->local.where.symbol;
      const auto group = groups.find(weight);
      if (group == groups.end() || program_.buffers[weight].memory == MemoryKind::kHost) continue;
      Shard& shard = shards_[weight];
      shard.group = group->second;
      shard.gathers.push_back(id);
      gathered_[gather->full.where.symbol] = weight;
    }
  }

  // Returns the number of the parameter that a view of a gathered group is, or nothing.
  static std::optional<int64_t> ParameterOf(const Shard& shard, const Tensor& view) {
    const auto& parameters = shard.group->layout().parameters();
    for (size_t q = 0; q < parameters.size(); ++q) {
      const bool there = view.where.offset_bytes == parameters[q].offset_elements * SizeOf(view.dtype);
      if (there && view.contiguous() && view.elements() == parameters[q].elements) return static_cast<int64_t>(q);
    }
    return std::nullopt;
  }

  // Leaves out groups that something reads which does not quantize a whole parameter.
  void RefuseOtherReaders() {
    for (const Instruction& instruction : program_.instructions) {
      const Op* op = std::get_if<Op>(&instruction.action);
      const auto* quantize = op == nullptr ? nullptr : op->As<QuantizeFloat8>();
      const bool quantizes = quantize != nullptr || (op != nullptr && op->Is<AbsMax>());
      const bool e5m2 = quantize != nullptr && quantize->out_RC.dtype == DType::kFloat8E5M2;
      VisitInstruction(instruction, /*first_iteration=*/false, [&](absl::string_view, const Tensor& t, Access access) {
        const auto gathered = gathered_.find(t.where.symbol);
        if (gathered == gathered_.end() || access == Access::kWrite) return;
        const auto shard = shards_.find(gathered->second);
        if (shard == shards_.end() || (quantizes && !e5m2 && ParameterOf(shard->second, t))) return;
        shards_.erase(shard);
      });
    }
  }

  // Inserts what the ranks do when a step begins: each finds the maxima of its shards, they gather these, and each
  // quantizes its shards.
  void QuantizeShards(const std::vector<Shard*>& shards) {
    const int64_t ranks = shards.front()->group->layout().shards();
    int64_t all = 0;
    for (const Shard* shard : shards) all += shard->parameters();
    const Tensor own = edit_.AddTensor("weights.maxima", BufferCategory::kGatheredParameters,
                                       Tensor::Contiguous(DType::kFloat32, {1, all}));
    const Tensor maxima = edit_.AddTensor("weights.maxima.gathered", BufferCategory::kGatheredParameters,
                                          Tensor::Contiguous(DType::kFloat32, {ranks, all}));
    const auto insert = [&](StreamId stream, Action action) {
      edit_.InsertBefore(0, {.action = std::move(action), .stream = stream, .phase = Phase::kBegin});
    };
    std::vector<QuantizeShard> ops;
    int64_t at = 0;
    for (Shard* shard : shards) {
      QuantizeShard& op = ops.emplace_back(OpOf(*shard));
      op.maxima_WQ = own.Slice(1, at, shard->parameters());
      insert(StreamId::kCompute, Op(op));
      op.maxima_WQ = maxima.Slice(1, at, shard->parameters());
      at += shard->parameters();
    }
    insert(StreamId::kGather, Collective{.kind = CollectiveKind::kAllGather, .local = own, .full = maxima});
    for (size_t i = 0; i < shards.size(); ++i) {
      QuantizeShard& op = ops[i];
      const std::string name = program_.buffers[op.weight_P.where.symbol].name;
      op.stage = QuantizeShard::Stage::kQuantize;
      op.out_P = shards[i]->codes_P = edit_.AddTensor(name + ".codes", BufferCategory::kWidenedParameters,
                                                      Tensor::Contiguous(DType::kFloat8E4M3, {op.weight_P.elements()}));
      op.scales_Q = shards[i]->scales_Q =
          edit_.AddTensor(name + ".scales", BufferCategory::kWidenedParameters,
                          Tensor::Contiguous(DType::kFloat32, {shards[i]->parameters()}));
      insert(StreamId::kCompute, Op(op));
    }
  }

  static QuantizeShard OpOf(const Shard& shard) {
    std::vector<ElementRange> ranges;
    for (const auto& parameter : shard.group->layout().parameters()) ranges.push_back(parameter.range());
    return {.weight_P = shard.group->own_weight,
            .parameters = std::make_shared<const std::vector<ElementRange>>(std::move(ranges)),
            .shard_stride = shard.group->placement.owned_stride()};
  }

  void GatherCodes(const Shard& shard, InstructionId id) {
    auto& gather = std::get<Collective>(program_.instructions[id].action);
    const BufferId full = gather.full.where.symbol;
    gather.local = shard.codes_P;
    gather.full = Tensor::Contiguous(DType::kFloat8E4M3, {gather.full.elements()});
    gather.full.where.symbol = full;
    program_.buffers[full].slot_bytes = gather.full.extent_bytes();
  }

  // Lets an instruction read gathered codes and scales. Takes it out if it makes them, and transposes codes if it makes
  // transposed ones.
  void Change(InstructionId id) {
    Instruction& instruction = program_.instructions[id];
    const Op* op = std::get_if<Op>(&instruction.action);
    const auto* find = op == nullptr ? nullptr : op->As<AbsMax>();
    if (find != nullptr && ShardOf(find->x_RC) != nullptr) return edit_.Remove(id);
    const auto* quantize = op == nullptr ? nullptr : op->As<QuantizeFloat8>();
    const Shard* const shard = quantize == nullptr ? nullptr : ShardOf(quantize->x_RC);
    if (shard == nullptr) {
      return ChangeOperands(instruction, [&](Tensor& t) {
        if (t.where.symbol >= std::ssize(places_)) return;
        const Place& place = places_[t.where.symbol];
        if (place.buffer < 0) return;
        t.where = {.symbol = place.buffer, .offset_bytes = t.where.offset_bytes + place.offset_bytes};
      });
    }
    const int64_t parameter = *ParameterOf(*shard, quantize->x_RC);
    Tensor codes_RC = Tensor::Contiguous(DType::kFloat8E4M3, {quantize->x_RC.dim(0), quantize->x_RC.dim(1)});
    codes_RC.where = {.symbol = quantize->x_RC.where.symbol,
                      .offset_bytes = shard->group->layout().parameters()[parameter].offset_elements};
    Read(quantize->out_RC, codes_RC);
    Read(quantize->scale_1, shard->scales_Q.Slice(0, parameter, 1));
    if (quantize->transposed_CR.present()) {
      edit_.InsertAfter(id, {.action = TransposeFloat8{codes_RC, quantize->transposed_CR},
                             .stream = instruction.stream,
                             .phase = instruction.phase,
                             .unit = instruction.unit,
                             .micro_batch = instruction.micro_batch});
    }
    edit_.Remove(id);
  }

  // Returns the shard of a view of a gathered group, or null for other tensors.
  const Shard* ShardOf(const Tensor& view) const {
    const auto gathered = gathered_.find(view.where.symbol);
    if (gathered == gathered_.end()) return nullptr;
    const auto shard = shards_.find(gathered->second);
    return shard == shards_.end() ? nullptr : &shard->second;
  }

  // Lets later instructions read `there` in place of `output`, which may be absent.
  void Read(const Tensor& output, const Tensor& there) {
    if (!output.present()) return;
    places_[output.where.symbol] = {there.where.symbol, there.where.offset_bytes - output.where.offset_bytes};
  }

  StepProgram& program_;
  const JobState& state_;
  ProgramEdit edit_;
  std::vector<Place> places_;              // By buffer of the program before.
  std::map<BufferId, Shard> shards_;       // By the buffer of weights.
  std::map<BufferId, BufferId> gathered_;  // By buffer into which weights are gathered: that of the weights.
};

// Returns the unit that all instructions of the loop work for, or -1 if they work for several.
int32_t UnitOf(const StepProgram& program, const Loop& loop) {
  const int32_t unit = program.instructions[loop.begin].unit;
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    if (program.instructions[id].unit != unit) return -1;
  }
  return unit;
}

// Takes the ops that quantize weights out of loops, and puts one for each weight before each loop.
class OnceQuantizer {
 public:
  explicit OnceQuantizer(StepProgram& program)
      : program_(program), edit_(program), first_new_(static_cast<BufferId>(program.buffers.size())) {
    for (BufferId b = 0; b < first_new_; ++b) renamed_.push_back(b);
  }

  absl::Status Run(const WorkLimits& limits) {
    for (const Loop& loop : program_.loops) {
      SHALE_RETURN_IF_ERROR(limits.Check());
      const std::vector<bool> written = WrittenIn(program_, loop);
      const auto fixed = [&](const Tensor& t) {
        const BufferId b = t.where.symbol;
        return b >= std::ssize(written) || (!written[b] && program_.buffers[b].slots == 1);
      };
      std::vector<Quantized> weights;
      std::vector<Transposed> transposed;
      for (InstructionId id = loop.begin; id < loop.end; ++id) {
        Instruction& instruction = program_.instructions[id];
        ChangeOperands(instruction, [&](Tensor& t) { Rename(t); });
        const Op* op = std::get_if<Op>(&instruction.action);
        if (op == nullptr || loop.repeat == 1) continue;
        if (const auto* find = op->As<AbsMax>();
            find != nullptr && fixed(find->x_RC) && find->source.kind == Float8Source::Kind::kMatrix) {
          Quantized& weight = WeightOf(find->x_RC, instruction, weights);
          weight.finds_maximum = true;
          Share(find->maximum_1, weight.op.maximum_1);
          edit_.Remove(id);
        } else if (const auto* quantize = op->As<QuantizeFloat8>();
                   quantize != nullptr && fixed(quantize->x_RC) &&
                   quantize->source.kind == Float8Source::Kind::kMatrix &&
                   (!quantize->maximum_1.present() || fixed(quantize->maximum_1))) {
          Quantized& weight = WeightOf(quantize->x_RC, instruction, weights);
          if (!weight.finds_maximum) weight.op.maximum_1 = quantize->maximum_1;
          Share(quantize->out_RC, weight.op.out_RC);
          Share(quantize->transposed_CR, weight.op.transposed_CR);
          Share(quantize->scale_1, weight.op.scale_1);
          Share(quantize->out_scales, weight.op.out_scales);
          Share(quantize->transposed_scales, weight.op.transposed_scales);
          weight.op.scales = quantize->scales;
          edit_.Remove(id);
        } else if (const auto* transpose = op->As<TransposeFloat8>(); transpose != nullptr && fixed(transpose->x_RC)) {
          Share(transpose->y_CR, TransposedOf(transpose->x_RC, instruction, transposed).op.y_CR);
          edit_.Remove(id);
        }
      }
      for (const Quantized& weight : weights) Insert(loop, weight);
      for (const Transposed& weight : transposed) Insert(loop, weight.phase, weight.op);
    }
    edit_.Apply();
    return absl::OkStatus();
  }

 private:
  // What a loop reads of one weight.
  struct Quantized {
    QuantizeFloat8 op;  // Without an output if only the maximum is read.
    Phase phase;
    bool finds_maximum = false;  // If not, it was found before an earlier loop.
  };

  // A weight that was gathered in fp8.
  struct Transposed {
    TransposeFloat8 op;
    Phase phase;
  };

  void Rename(Tensor& t) const {
    while (renamed_[t.where.symbol] != t.where.symbol) t.where.symbol = renamed_[t.where.symbol];
  }

  Quantized& WeightOf(const Tensor& x, const Instruction& instruction, std::vector<Quantized>& weights) const {
    for (Quantized& weight : weights) {
      if (IsSameView(weight.op.x_RC, x)) return weight;
    }
    return weights.emplace_back(Quantized{.op = {.x_RC = x}, .phase = instruction.phase});
  }

  Transposed& TransposedOf(const Tensor& x, const Instruction& instruction, std::vector<Transposed>& weights) const {
    for (Transposed& weight : weights) {
      if (IsSameView(weight.op.x_RC, x)) return weight;
    }
    return weights.emplace_back(Transposed{.op = {.x_RC = x}, .phase = instruction.phase});
  }

  // Lets all later instructions find `output`, an operand of an op that is taken out, in `shared`. If that is absent,
  // it becomes a new buffer, or the one in which `output` is already, because the op has run for another visit before.
  void Share(const Tensor& output, Tensor& shared) {
    if (!output.present()) return;
    if (!shared.present() && output.where.symbol >= first_new_) shared = output;
    if (!shared.present()) {
      shared = edit_.AddTensor(program_.buffers[output.where.symbol].name, BufferCategory::kWidenedParameters, output);
      renamed_.push_back(shared.where.symbol);
    }
    renamed_[output.where.symbol] = shared.where.symbol;
  }

  void Insert(const Loop& loop, const Quantized& weight) {
    if (weight.finds_maximum) {
      Insert(loop, weight.phase, AbsMax{.x_RC = weight.op.x_RC, .maximum_1 = weight.op.maximum_1});
    }
    const bool quantizes = weight.op.out_RC.present() || weight.op.transposed_CR.present();
    if (quantizes) Insert(loop, weight.phase, weight.op);
  }
  void Insert(const Loop& loop, Phase phase, Op op) {
    const int32_t unit = UnitOf(program_, loop);
    edit_.InsertBeforeLoop(loop.begin,
                           {.action = std::move(op), .phase = unit < 0 ? Phase::kBegin : phase, .unit = unit});
  }

  StepProgram& program_;
  ProgramEdit edit_;
  const BufferId first_new_;       // The first buffer that is new.
  std::vector<BufferId> renamed_;  // By buffer: where its contents are; itself, if they are there.
};

}  // namespace

void GatherFloat8(StepProgram& program, const JobState& state) { Float8Gatherer(program, state).Run(); }

absl::Status QuantizeOnce(StepProgram& program, const WorkLimits& limits) { return OnceQuantizer(program).Run(limits); }

}  // namespace shale
