#include "tools/bench_step_work.h"

#include <map>
#include <variant>

#include "kernels/ops.h"

namespace shale {

StepWork WorkOf(const StepProgram& program) {
  StepWork work;
  std::map<ProductSize, size_t> known;
  const auto add = [&](const Op& any) {
    const size_t before = work.order.size();
    std::visit(
        [&](const auto& op) {
          // Whatever multiplies two matrices, however it is called.
          if constexpr (requires { op.m(), op.n(), op.k(), op.a, op.b, op.c_MN; }) {
            const ProductSize shape{.m = op.m(), .n = op.n(), .k = op.k(), .transposed_a = op.transpose_a,
                                    .dtype = op.a.dtype, .c_dtype = op.c_MN.dtype};
            const auto [at, is_new] = known.emplace(shape, work.shapes.size());
            if (is_new) work.shapes.push_back(shape);
            work.order.push_back(at->second);
          }
        },
        any);
    if (work.order.size() > before) return;
    if (const double flops = FlopsOf(any); flops > 0) {
      work.attention_flops += flops;
      return;
    }
    VisitOperands(any, [&](absl::string_view, const Tensor& t, Access access) {
      if (t.present()) work.other_bytes += (access == Access::kReadWrite ? 2 : 1) * t.elements() * SizeOf(t.dtype);
    });
  };
  for (const Section& section : program.sections) {
    for (int64_t pass = 0; pass < section.repeat; ++pass) {
      for (InstructionId id = section.begin; id < section.end; ++id) {
        const Instruction& instruction = program.instructions[id];
        if (instruction.last_pass_only && pass + 1 < section.repeat) continue;
        if (const Op* op = std::get_if<Op>(&instruction.action)) add(*op);
      }
    }
  }
  return work;
}

}  // namespace shale
