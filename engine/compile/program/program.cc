// DumpProgram: writes one line for each buffer and each instruction. "m0" marks an instruction that works for a
// micro-batch (0 plus the iteration of its loop), "-" one that works for the whole step.

#include "engine/compile/program/program.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/compile/program/accesses.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

std::string UnitName(const StepProgram& program, int32_t unit) {
  if (unit < 0) return "-";
  if (unit >= std::ssize(program.units)) return absl::StrCat("unit ", unit);
  return program.units[unit];
}

// Returns for example "#7 blocks.0.x+1024+shard*512 bf16[4, 64]".
std::string OperandText(const StepProgram& program, const Tensor& t) {
  std::string text = absl::StrCat("#", t.where.symbol);
  if (t.where.symbol >= 0 && t.where.symbol < std::ssize(program.buffers)) {
    absl::StrAppend(&text, " ", program.buffers[t.where.symbol].name);
  }
  if (t.where.offset_bytes != 0) absl::StrAppend(&text, "+", t.where.offset_bytes);
  if (t.where.shard_stride_bytes != 0) absl::StrAppend(&text, "+shard*", t.where.shard_stride_bytes);
  absl::StrAppend(&text, " ", t.ToString());
  if (!t.contiguous()) absl::StrAppend(&text, " strided");
  return text;
}

// Returns for example "reads a = #1 x f32[4], b = #2 w f32[4]; writes c = #3 y f32[4]".
std::string OperandsText(const StepProgram& program, const Instruction& instruction) {
  std::vector<std::string> by_access[3];
  VisitInstruction(instruction, /*first_iteration=*/false, [&](absl::string_view name, const Tensor& t, Access access) {
    by_access[static_cast<int>(access)].push_back(absl::StrCat(name, " = ", OperandText(program, t)));
  });
  std::vector<std::string> parts;
  for (const auto& [access, verb] :
       {std::pair(Access::kRead, "reads "), {Access::kWrite, "writes "}, {Access::kReadWrite, "updates "}}) {
    const std::vector<std::string>& operands = by_access[static_cast<int>(access)];
    if (!operands.empty()) parts.push_back(absl::StrCat(verb, absl::StrJoin(operands, ", ")));
  }
  return absl::StrJoin(parts, "; ");
}

// Returns for example "AllGather over shard".
std::string ActionText(const Instruction& instruction) {
  const auto* collective = std::get_if<Collective>(&instruction.action);
  return collective == nullptr ? NameOf(instruction)
                               : absl::StrCat(NameOf(instruction), " over ", ToString(collective->axis));
}

void AppendInstruction(const StepProgram& program, InstructionId id, int unit_width, std::string& text) {
  const Instruction& instruction = program.instructions[id];
  absl::StrAppendFormat(&text, "%6d  %-7s  %-9s  %-*s  %s  %s: %s", id, ToString(instruction.stream),
                        ToString(instruction.phase), unit_width, UnitName(program, instruction.unit),
                        instruction.micro_batch < 0 ? "- " : absl::StrCat("m", instruction.micro_batch),
                        ActionText(instruction), OperandsText(program, instruction));
  if (instruction.last_iteration_only) absl::StrAppend(&text, "; in the last iteration only");
  if (instruction.first_iteration_differs) {
    const auto* matmul = std::get<Op>(instruction.action).As<MatMul>();
    const bool packs = matmul != nullptr && matmul->b_is_packed;
    absl::StrAppend(&text, packs ? "; packs b in the first iteration" : "; overwrites in the first iteration");
  }
  if (!instruction.waits.empty()) absl::StrAppend(&text, "; waits ", absl::StrJoin(instruction.waits, ", "));
  text += "\n";
}

}  // namespace

absl::string_view ToString(BufferCategory category) {
  switch (category) {
    case BufferCategory::kParameterShards: return "parameter shards";
    case BufferCategory::kFrozenParameters: return "frozen parameters";
    case BufferCategory::kMasterWeights: return "master weights";
    case BufferCategory::kOptimizerState: return "optimizer state";
    case BufferCategory::kGradientShards: return "gradient shards";
    case BufferCategory::kUnshardedGradients: return "unsharded gradients";
    case BufferCategory::kGatheredParameters: return "gathered parameters";
    case BufferCategory::kWidenedParameters: return "widened parameters";
    case BufferCategory::kActivations: return "activations kept";
    case BufferCategory::kActivationBoundaries: return "activation boundaries";
    case BufferCategory::kWorkspace: return "workspace of a unit";
    case BufferCategory::kLossWorkspace: return "loss workspace";
    case BufferCategory::kLibraryWorkspace: return "library workspace";
    case BufferCategory::kData: return "data";
    case BufferCategory::kSnapshot: return "checkpoint snapshot";
    case BufferCategory::kCache: return "key/value cache";
  }
  return "?";
}

absl::string_view ToString(StreamId stream) {
  switch (stream) {
    case StreamId::kCompute: return "compute";
    case StreamId::kGather: return "gather";
    case StreamId::kReduce: return "reduce";
    case StreamId::kCopy: return "copy";
    case StreamId::kHost: return "host";
  }
  return "?";
}

absl::string_view ToString(Phase phase) {
  switch (phase) {
    case Phase::kBegin: return "begin";
    case Phase::kForward: return "forward";
    case Phase::kRecompute: return "recompute";
    case Phase::kBackward: return "backward";
    case Phase::kReduce: return "reduce";
    case Phase::kUpdate: return "update";
    case Phase::kEnd: return "end";
  }
  return "?";
}

bool UsesStream(const StepProgram& program, StreamId stream) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [=](const Instruction& instruction) { return instruction.stream == stream; });
}

std::string NameOf(const Instruction& instruction) {
  if (const auto* op = std::get_if<Op>(&instruction.action)) return std::string(NameOf(*op));
  if (const auto* collective = std::get_if<Collective>(&instruction.action)) {
    return std::string(ToString(collective->kind));
  }
  if (const auto* transfer = std::get_if<Transfer>(&instruction.action)) return transfer->to_host ? "Offload" : "Fetch";
  const StepItem item = std::get<StepItemCopy>(instruction.action).item;
  return absl::StrCat(ToHost(item) ? "ToHost " : "ToDevice ", ToString(item));
}

std::string DumpProgram(const StepProgram& program) {
  std::string text =
      absl::StrCat(program.units.size(), " units, ", program.micro_batches, " micro-batches, ", program.buffers.size(),
                   " buffers, ", program.instructions.size(), " instructions\n\nbuffers\n");
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    absl::StrAppend(&text, "  #", b, " ", buffer.name, ": ", buffer.slots > 1 ? absl::StrCat(buffer.slots, " x ") : "",
                    buffer.slot_bytes, " bytes, ", ToString(buffer.category), buffer.persistent ? ", persistent" : "",
                    buffer.memory == MemoryKind::kHost ? ", in host memory" : "");
    if (buffer.held_until >= 0) absl::StrAppend(&text, ", held until ", buffer.held_until);
    text += "\n";
  }
  int unit_width = 1;
  for (const std::string& unit : program.units) unit_width = std::max(unit_width, static_cast<int>(unit.size()));
  for (const Loop& loop : program.loops) {
    absl::StrAppend(&text, "\n", loop.repeat == 1 ? "once" : absl::StrCat(loop.repeat, " times"), "\n");
    for (InstructionId id = loop.begin; id < loop.end; ++id) AppendInstruction(program, id, unit_width, text);
  }
  return text;
}

}  // namespace shale
