// PackOnce and AddScratch: the passes that give ops the memory that the libraries of a device need.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/accesses.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/step/edit.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/matmul.h"

namespace shale {

namespace {

bool HasEqualB(const MatMul& x, const MatMul& y) { return IsSameView(x.b, y.b) && x.transpose_b == y.transpose_b; }

// Finds out how much scratch ops need, and whose kernels compute them. Keeps the answers about attention: they take
// long, and most blocks are alike.
class ScratchFinder {
 public:
  struct Found {
    int64_t bytes = 0;
    absl::string_view kernels;
  };

  Found Of(const Op& op, const Ops& ops) {
    const auto ask = [&] { return Found{.bytes = ops.ScratchBytes(op), .kernels = ops.KernelsOf(op)}; };
    if (!op.Is<AttentionForward>() && !op.Is<AttentionBackward>()) return ask();
    std::vector<int64_t> key = LibraryAttributes(op);
    VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
      key.insert(key.end(), {static_cast<int64_t>(t.dtype), t.rank, t.where.offset_bytes});
      key.insert(key.end(), t.shape.begin(), t.shape.end());
      key.insert(key.end(), t.strides.begin(), t.strides.end());
    });
    const auto [found, added] = found_.try_emplace(std::move(key));
    if (added) found->second = ask();
    return found->second;
  }

 private:
  std::map<std::vector<int64_t>, Found> found_;  // By kind, attributes and operands.
};

}  // namespace

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
      if (!available.ok()) return;
      const ScratchFinder::Found found = (on_host ? of_host : of_device).Of(form, device);
      bytes = std::max(bytes, found.bytes);
      instruction.kernels = found.kernels;  // Forms of an op have the same.
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
