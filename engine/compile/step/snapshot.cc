#include "absl/strings/str_cat.h"
#include "engine/compile/step/compile.h"
#include "engine/compile/step/passes.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/flat.h"

namespace shale {

absl::StatusOr<CompiledStep> CompileSnapshot(const ModelGraph& model, const StepOptions& options, const Ops& ops) {
  SHALE_CHECK(options.snapshot);
  ProgramWriter writer;
  CompiledStep compiled;
  SHALE_ASSIGN_OR_RETURN(compiled.state, DeclareState(model, options, writer));
  const auto copy = [&](const Tensor& from, const Tensor& to) {
    if (!from.present()) return;
    const EmitContext context{.stream = StreamId::kCopy, .phase = Phase::kEnd};
    if (writer.IsOnHost(from) && options.updates_on_host()) {
      writer.Emit({.stream = StreamId::kHost, .phase = Phase::kEnd}, Op(Copy{from, to}));
    } else if (writer.IsOnHost(from)) {
      // Only transfers reach host memory, so the copy goes through the arena, one tensor at a time.
      const Buffer buffer = writer.program().buffers[from.where.symbol];
      const Tensor device = writer.AddTensor(absl::StrCat(buffer.name, ".fetched"), buffer.category, from);
      writer.Emit(context, Transfer{.device = device, .host = from, .to_host = false});
      writer.Emit(context, Transfer{.device = device, .host = to, .to_host = true});
    } else {
      writer.Emit(context, Op(Copy{from, to}));
    }
  };
  for (const GroupState& g : compiled.state.groups) {
    if (g.frozen) continue;
    for (size_t i = 0; i < g.saved.states.size(); ++i) copy(g.saved.states[i], g.snapshot.states[i]);
    copy(g.saved.value, g.snapshot.value);
    copy(g.saved.high, g.snapshot.high);
    copy(g.saved.low, g.snapshot.low);
  }
  compiled.program = writer.Finish();
  SHALE_RETURN_IF_ERROR(AddScratch(compiled.program, ops));
  return compiled;
}

}  // namespace shale
