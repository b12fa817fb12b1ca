#include "engine/run/runtime/warm_up.h"

#include <algorithm>
#include <compare>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/op.h"
#include "sharding/comm/all_to_all.h"

namespace shale {
namespace {

constexpr int64_t kAlignment = 256;

// Returns, in the order of ChangeOperands, by how much the addresses of an issue's operands and scratch will exceed
// multiples of kAlignment. A library may choose another algorithm for other values.
std::vector<int64_t> SkewsOf(const StepProgram& program, const MemoryPlan& plan, int shard, const Issue& issue) {
  Instruction instruction = program.instructions[issue.id];
  std::vector<int64_t> skews;
  ChangeOperands(instruction, [&](const Tensor& t) {
    const Location& where = t.where;
    const Buffer& buffer = program.buffers[where.symbol];
    const int64_t slot = buffer.slots > 1 ? issue.iteration * buffer.slot_bytes : 0;
    const int64_t address = plan.addresses[where.symbol] + where.offset_bytes + shard * where.shard_stride_bytes + slot;
    skews.push_back(address % kAlignment);
  });
  return skews;
}

bool HasSlots(const StepProgram& program, Instruction instruction) {
  bool has = false;
  ChangeOperands(instruction, [&](const Tensor& t) { has = has || program.buffers[t.where.symbol].slots > 1; });
  return has;
}

// Places the operands of the instruction and its scratch one after another, from `base` on. Returns the bytes that they
// take. If `base` is null, only counts these.
int64_t Place(Instruction& instruction, const std::vector<int64_t>& skews, std::byte* base) {
  int64_t bytes = 0;
  auto skew = skews.begin();
  const auto place = [&](Tensor& t) {
    bytes += *skew++;
    t.data = base == nullptr ? nullptr : base + bytes;
    bytes = RoundUp(bytes + t.extent_bytes(), kAlignment);
  };
  ChangeOperands(instruction, place);
  return bytes;
}

// An instruction, in the form that it takes in an iteration.
struct Try {
  InstructionId id = 0;
  bool first_form = false;
  std::vector<int64_t> skews;
  auto operator<=>(const Try&) const = default;

  Instruction InstructionOf(const StepProgram& program) const {
    Instruction instruction = program.instructions[id];
    TakeForm(instruction, first_form);
    return instruction;
  }
};

std::set<Try> TriesOf(const StepProgram& program, const MemoryPlan& plan, int shard,
                      absl::FunctionRef<bool(const Op&)> wanted) {
  std::set<Try> tries;
  for (const Issue& issue : IssuesOf(program)) {
    const Instruction& instruction = program.instructions[issue.id];
    const Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr || !UsesLibrary(*op) || !wanted(*op)) continue;
    // Later iterations repeat the second one, unless operands move.
    if (issue.iteration > 1 && !HasSlots(program, instruction)) continue;
    tries.insert({.id = issue.id,
                  .first_form = issue.first_iteration() && instruction.first_iteration_differs,
                  .skews = SkewsOf(program, plan, shard, issue)});
  }
  return tries;
}

// Everything by which a library may choose an algorithm.
struct Question {
  std::vector<int64_t> attributes, operands, skews;
  auto operator<=>(const Question&) const = default;

  static Question Of(const Op& op, const std::vector<int64_t>& skews) {
    Question question{.attributes = LibraryAttributes(op), .skews = skews};
    VisitOperands(op, [&](absl::string_view, const Tensor& t, Access) {
      question.operands.insert(question.operands.end(), {t.rank, static_cast<int64_t>(t.dtype)});
      for (int d = 0; d < t.rank; ++d) question.operands.insert(question.operands.end(), {t.dim(d), t.stride(d)});
    });
    return question;
  }
};

// What WarmUpOps runs.
struct Call {
  Instruction instruction;
  std::vector<int64_t> skews;
  const Op& op() const { return std::get<Op>(instruction.action); }
};

// Returns the calls of libraries that the programs will make, each once: the layers of a model make the same ones.
std::vector<Call> CallsOf(absl::Span<const ProgramAndPlan> programs, int shard,
                          absl::FunctionRef<bool(const Op&)> wanted) {
  std::set<Question> asked;
  std::vector<Call> calls;
  for (const ProgramAndPlan& planned : programs) {
    for (const Try& one : TriesOf(planned.program, planned.memory, shard, wanted)) {
      Call call{one.InstructionOf(planned.program), one.skews};
      if (asked.insert(Question::Of(call.op(), call.skews)).second) calls.push_back(std::move(call));
    }
  }
  return calls;
}

absl::Status Trying(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("trying ", what, " before the start: ", status.message()));
}

absl::Status RunOnce(const Op& op, const Tensor& scratch, Ops& ops, Stream& stream) {
  SHALE_RETURN_IF_ERROR(ops.Prepare(op, scratch.extent_bytes()));
  return ops.Launch(op, {static_cast<std::byte*>(scratch.data), scratch.extent_bytes()}, stream);
}

// A collective as NCCL sees it.
struct Size {
  CollectiveKind kind = CollectiveKind::kAllGather;
  DType dtype = DType::kFloat32;
  int64_t elements = 0;  // Of the full vector.
  auto operator<=>(const Size&) const = default;
};

// Returns the collectives that the programs run on a stream with the communicator that serves `axis`.
std::set<Size> SizesOf(absl::Span<const ProgramAndPlan> programs, const Mesh& mesh, MeshAxis axis, StreamId stream) {
  std::set<Size> sizes;
  for (const ProgramAndPlan& planned : programs) {
    for (const Instruction& instruction : planned.program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      if (collective == nullptr || instruction.stream != stream || mesh.Serving(collective->axis) != axis) continue;
      sizes.insert({collective->kind, collective->full.dtype, collective->full.elements()});
    }
  }
  return sizes;
}

}  // namespace

absl::Status WarmUpOps(absl::Span<const ProgramAndPlan> programs, int shard, absl::FunctionRef<bool(const Op&)> wanted,
                       Ops& ops, Device& device) {
  std::vector<Call> calls = CallsOf(programs, shard, wanted);
  int64_t bytes = 0;
  for (Call& call : calls) bytes = std::max(bytes, Place(call.instruction, call.skews, nullptr));
  if (bytes == 0) return absl::OkStatus();
  std::string name = "ops";
  const auto run = [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device.Allocate(bytes));
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("compute"));
    absl::Status status;
    for (Call& call : calls) {
      Place(call.instruction, call.skews, arena->base());
      name = NameOf(call.instruction);
      status = RunOnce(call.op(), call.instruction.scratch, ops, *stream);
      if (!status.ok()) break;
    }
    status.Update(stream->Synchronize());
    return status;
  };
  const absl::Status status = run();
  return Trying(name, status);
}

absl::Status WarmUpCollectives(absl::Span<const ProgramAndPlan> programs, const Mesh& mesh, MeshAxis axis,
                               StreamId stream_id, Communicator& communicator, Device& device) {
  const std::set<Size> sizes = SizesOf(programs, mesh, axis, stream_id);
  int64_t most = 0;
  bool exchanges = false;  // An AllToAll receives as much as it sends.
  for (const Size& size : sizes) {
    most = std::max(most, size.elements * SizeOf(size.dtype));
    exchanges = exchanges || size.kind == CollectiveKind::kAllToAll;
  }
  if (most == 0) return absl::OkStatus();
  const int64_t shard_offset = RoundUp(most, kAlignment);
  const auto run = [&](const Size& size, std::byte* base, Stream& stream) {
    Tensor full = Tensor::Contiguous(size.dtype, {size.elements});
    Tensor shard = Tensor::Contiguous(size.dtype, {size.elements / communicator.size()});
    full.data = base;
    shard.data = base + shard_offset;
    const auto rows = [&](std::byte* data) {
      return Tensor::Contiguous(size.dtype, {communicator.size(), shard.elements()}, data);
    };
    switch (size.kind) {
      case CollectiveKind::kAllGather: return communicator.AllGather(shard, full, stream);
      case CollectiveKind::kReduceScatterSum: return communicator.ReduceScatterSum(full, shard, stream);
      case CollectiveKind::kAllReduceSum: return communicator.AllReduceSum(full, stream);
      case CollectiveKind::kAllToAll: return AllToAllRows(communicator, rows(base), rows(base + shard_offset), stream);
    }
    return absl::InternalError("an unknown kind of collective");
  };
  const auto run_all = [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena,
                           device.Allocate(shard_offset + (exchanges ? most : CeilDivide(most, communicator.size()))));
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(ToString(stream_id)));
    absl::Status status;
    for (const Size& size : sizes) {
      if (status.ok()) status = run(size, arena->base(), *stream);
    }
    if (!status.ok()) communicator.Abort(status);  // Unblocks the peers, which wait for what this rank will not begin.
    status.Update(stream->Synchronize());
    return status;
  };
  return Trying("collectives", run_all());
}

}  // namespace shale
