#include "engine/compile/step/writer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"

namespace shale {

void ProgramWriter::Emit(const EmitContext& context, Action action, bool first_iteration_differs) {
  Instruction instruction;
  instruction.action = std::move(action);
  instruction.stream = context.stream;
  instruction.first_iteration_differs = first_iteration_differs;
  instruction.phase = context.phase;
  instruction.unit = context.unit;
  instruction.micro_batch = context.micro_batch;
  instruction.last_iteration_only = context.once_a_step && in_loop();
  program_.instructions.push_back(std::move(instruction));
}

Tensor ProgramWriter::EmitFetch(const EmitContext& context, const Tensor& host) {
  const Buffer& buffer = program_.buffers[host.where.symbol];
  const BufferCategory category = buffer.category;
  const Tensor device = AddTensor(absl::StrCat(buffer.name, ".fetched"), category, host);
  EmitFetch(context, host, device);
  return device;
}

void ProgramWriter::EmitFetch(const EmitContext& context, const Tensor& host, const Tensor& device) {
  EmitContext copy = context;
  copy.stream = StreamId::kCopy;
  Emit(copy, Transfer{.device = device, .host = host, .to_host = false});
}

void ProgramWriter::EmitReturn(const EmitContext& context, const Tensor& device, const Tensor& host) {
  EmitContext copy = context;
  copy.stream = StreamId::kCopy;
  Emit(copy, Transfer{.device = device, .host = host, .to_host = true});
}

}  // namespace shale
