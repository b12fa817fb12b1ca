#include "engine/runtime/warm_up.h"

#include <algorithm>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/program/issues.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/op.h"

namespace shale {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kElements = 1024;  // Elements in one rank's part of a collective.

// Places the operands of the instruction and its scratch one after another, from `base` on. Returns the bytes that they
// take. If `base` is null, only counts these.
int64_t Place(Instruction& instruction, std::byte* base) {
  int64_t bytes = 0;
  const auto place = [&](Tensor& t) {
    t.data = base == nullptr ? nullptr : base + bytes;
    bytes += RoundUp(t.extent_bytes(), kAlignment);
  };
  ChangeOperands(instruction, place);
  return bytes;
}

absl::Status RunOnce(const Op& op, const Tensor& scratch, Ops& ops, Stream& stream) {
  SHALE_RETURN_IF_ERROR(ops.Prepare(op));
  return ops.Launch(op, {static_cast<std::byte*>(scratch.data), scratch.extent_bytes()}, stream);
}

}  // namespace

absl::Status WarmUpOps(const StepProgram& program, Ops& ops, Device& device) {
  std::vector<Instruction> instructions;
  for (const Instruction& instruction : program.instructions) {
    if (const Op* op = std::get_if<Op>(&instruction.action); op != nullptr && UsesLibrary(*op)) {
      instructions.push_back(instruction);
    }
  }
  int64_t bytes = 0;
  for (Instruction& instruction : instructions) bytes = std::max<int64_t>(bytes, Place(instruction, nullptr));
  if (bytes == 0) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device.Allocate(bytes));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
  absl::Status status;
  std::string name;
  for (Instruction& instruction : instructions) {
    Place(instruction, arena->base());
    name = NameOf(instruction);
    VisitForms(instruction, [&](const Op& form) {
      if (status.ok()) status = RunOnce(form, instruction.scratch, ops, *stream);
    });
    if (!status.ok()) break;
  }
  status.Update(stream->Synchronize());
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("trying ", name, " before the start: ", status.message()));
}

absl::Status WarmUpCollectives(Communicator& communicator, Device& device) {
  const int64_t shard_bytes = kElements * SizeOf(DType::kFloat32);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device.Allocate(shard_bytes * (communicator.size() + 1)));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("reduce"));
  Tensor shard = Tensor::Contiguous(DType::kFloat32, {kElements});
  Tensor full = Tensor::Contiguous(DType::kFloat32, {kElements * communicator.size()});
  shard.data = arena->base();
  full.data = arena->base() + shard_bytes;
  absl::Status status = communicator.AllGather(shard, full, *stream);
  if (status.ok()) status = communicator.ReduceScatterSum(full, shard, *stream);
  if (status.ok()) status = communicator.AllReduceSum(shard, *stream);
  if (!status.ok()) communicator.Abort(status);  // Unblocks the peers, which wait for what this rank will not begin.
  status.Update(stream->Synchronize());
  return status;
}

}  // namespace shale
