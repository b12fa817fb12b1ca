#include "engine/runtime/bound_program.h"

#include <utility>

#include "kernels/check.h"

namespace shale {
namespace {

// Calls visitor(tensor) for every operand of an instruction that can be changed.
template <class Visitor>
void VisitTensors(Instruction& instruction, Visitor&& visitor) {
  if (Op* op = std::get_if<Op>(&instruction.action)) {
    VisitOperands(*op, [&](absl::string_view, Tensor& t, Access) { visitor(t); });
  } else if (auto* collective = std::get_if<Collective>(&instruction.action)) {
    visitor(collective->local);
    visitor(collective->full);
  } else if (auto* transfer = std::get_if<Transfer>(&instruction.action)) {
    visitor(transfer->device);
    visitor(transfer->host);
  } else {
    visitor(std::get<HostCopy>(instruction.action).device);
  }
  visitor(instruction.scratch);
}

}  // namespace

absl::StatusOr<BoundProgram> BoundProgram::Create(const StepProgram& program, const MemoryPlan& plan,
                                                  RankRuntime& runtime) {
  BoundProgram bound(program);
  SHALE_RETURN_IF_ERROR(bound.Bind(plan, runtime));
  return bound;
}

absl::Status BoundProgram::Bind(const MemoryPlan& plan, RankRuntime& runtime) {
  instructions_ = program_->instructions;
  moves_.assign(size(), false);
  for (size_t id = 0; id < size(); ++id) {
    Instruction& instruction = instructions_[id];
    VisitTensors(instruction, [&](Tensor& t) {
      if (!t.present()) return;
      const Location& where = t.where;
      const Buffer& buffer = program_->buffers[where.symbol];
      const int64_t address = plan.addresses[where.symbol];
      std::byte* const begin = buffer.memory == MemoryKind::kHost
                                   ? runtime.offloaded().data() + (address - kHostMemoryBegin)
                                   : runtime.arena().base() + address;
      t.data = begin + where.offset_bytes + runtime.rank() * where.rank_stride_bytes;
      if (buffer.slots > 1) moves_[id] = true;
    });
    Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr) continue;
    if (auto* adamw = std::get_if<AdamW>(op)) {
      adamw->slice_begin = adamw->sharded ? runtime.rank() * adamw->gradient_P.elements() : 0;
    }
    SHALE_RETURN_IF_ERROR(Validate(*op));
    SHALE_RETURN_IF_ERROR(runtime.ops().Prepare(*op));
    if (!instruction.first_pass_differs) continue;
    Op first = *op;
    MakeFirst(first);
    SHALE_RETURN_IF_ERROR(runtime.ops().Prepare(first));
  }
  return absl::OkStatus();
}

const Instruction& BoundProgram::OfPass(InstructionId id, int64_t pass, Instruction& work) const {
  const Instruction& bound = instructions_[id];
  if (!moves_[id] && !bound.first_pass_differs) return bound;
  work = bound;
  if (work.first_pass_differs && pass == 0) MakeFirst(std::get<Op>(work.action));
  VisitTensors(work, [&](Tensor& t) {
    if (!t.present()) return;
    const Buffer& buffer = program_->buffers[t.where.symbol];
    if (buffer.slots > 1) t.data = static_cast<std::byte*>(t.data) + pass * buffer.slot_bytes;
  });
  return work;
}

absl::Status LaunchOp(const Instruction& bound, RankRuntime& runtime) {
  const Scratch scratch{static_cast<std::byte*>(bound.scratch.data), bound.scratch.extent_bytes()};
  return runtime.ops().Launch(std::get<Op>(bound.action), scratch, runtime.stream(bound.stream));
}

absl::Status LaunchTransfer(const Transfer& bound, Stream& stream) {
  const int64_t bytes = bound.device.extent_bytes();
  return bound.to_host ? stream.Copy(bound.host.data, bound.device.data, bytes)
                       : stream.Copy(bound.device.data, bound.host.data, bytes);
}

}  // namespace shale
