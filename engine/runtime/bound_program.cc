#include "engine/runtime/bound_program.h"

#include <utility>

#include "engine/program/issues.h"
#include "kernels/check.h"

namespace shale {
namespace {

Ops& OpsOf(const Instruction& instruction, RankRuntime& runtime) {
  return instruction.stream == StreamId::kHost ? *runtime.ops().host() : runtime.ops();
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
    ChangeOperands(instruction, [&](Tensor& t) {
      t.data = runtime.Address(plan, t.where);
      if (program_->buffers[t.where.symbol].slots > 1) moves_[id] = true;
    });
    Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr) continue;
    SetShard(*op, runtime.shard());
    SHALE_RETURN_IF_ERROR(Validate(*op));
    absl::Status prepared;
    VisitForms(instruction, [&](const Op& form) {
      if (prepared.ok()) prepared = OpsOf(instruction, runtime).Prepare(form);
    });
    SHALE_RETURN_IF_ERROR(prepared);
  }
  return absl::OkStatus();
}

const Instruction& BoundProgram::OfIteration(InstructionId id, int64_t iteration, Instruction& work) const {
  const Instruction& bound = instructions_[id];
  if (!moves_[id] && !bound.first_iteration_differs) return bound;
  work = bound;
  TakeForm(work, /*first_iteration=*/iteration == 0);
  ChangeOperands(work, [&](Tensor& t) {
    const Buffer& buffer = program_->buffers[t.where.symbol];
    if (buffer.slots > 1) t.data = static_cast<std::byte*>(t.data) + iteration * buffer.slot_bytes;
  });
  return work;
}

absl::Status LaunchOp(const Instruction& bound, RankRuntime& runtime) {
  const Scratch scratch{static_cast<std::byte*>(bound.scratch.data), bound.scratch.extent_bytes()};
  return OpsOf(bound, runtime).Launch(std::get<Op>(bound.action), scratch, runtime.stream(bound.stream));
}

absl::Status LaunchTransfer(const Transfer& bound, Stream& stream) {
  const int64_t bytes = bound.device.extent_bytes();
  return bound.to_host ? stream.Copy(bound.host.data, bound.device.data, bytes)
                       : stream.Copy(bound.device.data, bound.host.data, bytes);
}

}  // namespace shale
