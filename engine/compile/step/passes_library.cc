// QuantizeOnce, PackOnce and AddScratch: the passes that give ops the forms of weights and the memory that the
// libraries of a device need.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"

namespace shale {

namespace {

bool IsSameView(const Tensor& x, const Tensor& y) {
  return x.where == y.where && x.dtype == y.dtype && x.shape == y.shape && x.strides == y.strides;
}

bool HasEqualB(const MatMul& x, const MatMul& y) { return IsSameView(x.b, y.b) && x.transpose_b == y.transpose_b; }

// Returns, by buffer, whether an instruction of the loop writes it.
std::vector<bool> WrittenIn(const StepProgram& program, const Loop& loop) {
  std::vector<bool> written(program.buffers.size(), false);
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                     [&](absl::string_view, const Tensor& t, Access access) {
                       if (access != Access::kRead) written[t.where.symbol] = true;
                     });
  }
  return written;
}

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
  explicit OnceQuantizer(StepProgram& program) : program_(program), edit_(program) {
    for (BufferId b = 0; b < std::ssize(program.buffers); ++b) renamed_.push_back(b);
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
      for (InstructionId id = loop.begin; id < loop.end; ++id) {
        Instruction& instruction = program_.instructions[id];
        ChangeOperands(instruction, [&](Tensor& t) { Rename(t); });
        const Op* op = std::get_if<Op>(&instruction.action);
        if (op == nullptr || loop.repeat == 1) continue;
        if (const auto* find = op->As<AbsMax>(); find != nullptr && fixed(find->x_RC)) {
          Quantized& weight = WeightOf(find->x_RC, instruction, weights);
          weight.finds_maximum = true;
          Share(find->maximum_1, weight.op.maximum_1);
          edit_.Remove(id);
        } else if (const auto* quantize = op->As<QuantizeFloat8>();
                   quantize != nullptr && fixed(quantize->x_RC) && fixed(quantize->maximum_1)) {
          Quantized& weight = WeightOf(quantize->x_RC, instruction, weights);
          if (!weight.finds_maximum) weight.op.maximum_1 = quantize->maximum_1;
          Share(quantize->out_RC, weight.op.out_RC);
          Share(quantize->transposed_CR, weight.op.transposed_CR);
          Share(quantize->scale_1, weight.op.scale_1);
          edit_.Remove(id);
        }
      }
      for (const Quantized& weight : weights) Insert(loop, weight);
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

  void Rename(Tensor& t) const {
    if (t.where.symbol < std::ssize(renamed_)) t.where.symbol = renamed_[t.where.symbol];
  }

  Quantized& WeightOf(const Tensor& x, const Instruction& instruction, std::vector<Quantized>& weights) const {
    for (Quantized& weight : weights) {
      if (IsSameView(weight.op.x_RC, x)) return weight;
    }
    return weights.emplace_back(Quantized{.op = {.x_RC = x}, .phase = instruction.phase});
  }

  // Lets all later instructions find `output`, an operand of an op that is taken out, in `shared`, which gets a buffer
  // if it is absent.
  void Share(const Tensor& output, Tensor& shared) {
    if (!output.present()) return;
    if (!shared.present()) {
      shared = edit_.AddTensor(program_.buffers[output.where.symbol].name, BufferCategory::kWidenedParameters, output);
    }
    renamed_[output.where.symbol] = shared.where.symbol;
  }

  void Insert(const Loop& loop, const Quantized& weight) {
    const int32_t unit = UnitOf(program_, loop);
    const Phase phase = unit < 0 ? Phase::kBegin : weight.phase;
    const auto insert = [&](Op op) {
      edit_.InsertBeforeLoop(loop.begin, {.action = std::move(op), .phase = phase, .unit = unit});
    };
    if (weight.finds_maximum) insert(AbsMax{.x_RC = weight.op.x_RC, .maximum_1 = weight.op.maximum_1});
    if (weight.op.scale_1.present()) insert(weight.op);
  }

  StepProgram& program_;
  ProgramEdit edit_;
  std::vector<BufferId> renamed_;  // By buffer of the program before: where its contents are.
};

// Finds out how much scratch ops need. Keeps the answers about attention: they take long, and most blocks are alike.
class ScratchFinder {
 public:
  int64_t BytesOf(const Op& op, const Ops& ops) {
    if (!op.Is<AttentionForward>() && !op.Is<AttentionBackward>()) return ops.ScratchBytes(op);
    std::vector<int64_t> key = LibraryAttributes(op);
    VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
      key.insert(key.end(), {static_cast<int64_t>(t.dtype), t.rank, t.where.offset_bytes});
      key.insert(key.end(), t.shape.begin(), t.shape.end());
      key.insert(key.end(), t.strides.begin(), t.strides.end());
    });
    const auto [found, added] = bytes_.try_emplace(std::move(key), 0);
    if (added) found->second = ops.ScratchBytes(op);
    return found->second;
  }

 private:
  std::map<std::vector<int64_t>, int64_t> bytes_;  // By kind, attributes and operands.
};

}  // namespace

absl::Status QuantizeOnce(StepProgram& program, const WorkLimits& limits) { return OnceQuantizer(program).Run(limits); }

absl::Status PackOnce(StepProgram& program, const Ops& ops, const WorkLimits& limits) {
  ProgramEdit edit(program);
  for (const Loop& loop : program.loops) {
    if (loop.repeat == 1) continue;
    SHALE_RETURN_IF_ERROR(limits.Check());
    const std::vector<bool> written = WrittenIn(program, loop);
    std::vector<MatMul> packing;  // Those that pack, with different b.
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      Op* op = std::get_if<Op>(&program.instructions[id].action);
      MatMul* matmul = op == nullptr ? nullptr : op->As<MatMul>();
      // An op with other flags in the first iteration would overwrite what it is to add to.
      if (matmul == nullptr || matmul->accumulate) continue;
      const BufferId b = matmul->b.where.symbol;
      if (written[b] || program.buffers[b].slots > 1) continue;
      const int64_t bytes = ops.PackedBytes(*matmul);
      if (bytes == 0) continue;
      const Tensor packed = Tensor::Contiguous(DType::kInt16, {(bytes + 1) / 2});
      matmul->b_is_packed = true;
      const auto earlier = std::find_if(packing.begin(), packing.end(), [&](const MatMul& other) {
        return HasEqualB(*matmul, other) && other.packed_b.shape == packed.shape;
      });
      if (earlier != packing.end()) {
        matmul->packed_b = earlier->packed_b;
        continue;
      }
      matmul->packed_b = edit.AddTensor("packed weights", BufferCategory::kLibraryWorkspace, packed);
      program.instructions[id].first_iteration_differs = true;
      packing.push_back(*matmul);
    }
  }
  edit.Apply();
  return absl::OkStatus();
}

absl::Status AddScratch(StepProgram& program, const Ops& ops, const WorkLimits& limits) {
  ProgramEdit edit(program);
  ScratchFinder of_device, of_host;
  int32_t unit = -1;
  for (Instruction& instruction : program.instructions) {
    if (std::exchange(unit, instruction.unit) != instruction.unit) SHALE_RETURN_IF_ERROR(limits.Check());
    const bool on_host = instruction.stream == StreamId::kHost;
    const Ops& device = on_host ? *ops.host() : ops;
    int64_t bytes = 0;
    absl::Status available;
    VisitForms(instruction, [&](const Op& form) {
      available.Update(device.CheckAvailable(form));
      if (available.ok()) bytes = std::max(bytes, (on_host ? of_host : of_device).BytesOf(form, device));
    });
    if (!available.ok()) {
      const absl::string_view name = unit < 0 ? "the step" : absl::string_view(program.units[unit]);
      return absl::Status(available.code(), absl::StrCat(name, ": ", available.message()));
    }
    if (bytes == 0) continue;
    instruction.scratch = edit.AddTensor("scratch", BufferCategory::kLibraryWorkspace,
                                         Tensor::Contiguous(DType::kInt16, {(bytes + 1) / 2}),
                                         on_host ? MemoryKind::kHost : MemoryKind::kDevice);
  }
  edit.Apply();
  return absl::OkStatus();
}

std::optional<StepProgram> WithAmpleScratch(const StepProgram& program, const Ops& ops, int64_t most_bytes) {
  std::optional<StepProgram> ample;
  for (size_t id = 0; id < program.instructions.size(); ++id) {
    const Instruction& instruction = program.instructions[id];
    if (!instruction.scratch.present() || instruction.stream == StreamId::kHost) continue;
    int64_t bytes = 0;
    VisitForms(instruction, [&](const Op& form) { bytes = std::max(bytes, ops.AmpleScratchBytes(form, most_bytes)); });
    if (bytes <= instruction.scratch.extent_bytes()) continue;
    if (!ample) ample = program;
    Tensor& scratch = ample->instructions[id].scratch;
    scratch = Tensor::Contiguous(DType::kInt16, {(bytes + 1) / 2});
    scratch.where = instruction.scratch.where;
    ample->buffers[scratch.where.symbol].slot_bytes = scratch.extent_bytes();
  }
  return ample;
}

}  // namespace shale
