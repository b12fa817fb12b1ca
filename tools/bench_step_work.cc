#include "tools/bench_step_work.h"

#include <map>
#include <optional>
#include <variant>

#include "kernels/ops.h"

namespace shale {
namespace {

std::optional<AttentionSize> AttentionOf(const Op& any) {
  const auto size = [](const auto& op, bool backward) {
    const Tensor& q = op.q_BSHD;
    return AttentionSize{.heads = q.dim(0) * q.dim(2), .length = q.dim(1), .width = q.dim(3), .window = op.window,
                         .backward = backward, .dtype = q.dtype};
  };
  if (const auto* forward = std::get_if<AttentionForward>(&any)) return size(*forward, false);
  if (const auto* backward = std::get_if<AttentionBackward>(&any)) return size(*backward, true);
  return std::nullopt;
}

int64_t SizeBytes(const Tensor& t) { return t.present() ? t.elements() * SizeOf(t.dtype) : 0; }

// What is read of all ranks, which is the size of `full`, and the result.
int64_t BytesOf(const Collective& collective) {
  const Tensor& result = collective.kind == CollectiveKind::kReduceScatterSum ? collective.local : collective.full;
  return SizeBytes(collective.full) + SizeBytes(result);
}

}  // namespace

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
    if (const std::optional<AttentionSize> attention = AttentionOf(any); attention.has_value()) {
      ++work.attention[*attention];
      work.attention_flops += FlopsOf(any);
      return;
    }
    VisitOperands(any, [&](absl::string_view, const Tensor& t, Access access) {
      work.other_bytes += (access == Access::kReadWrite ? 2 : 1) * SizeBytes(t);
    });
  };
  for (const Section& section : program.sections) {
    for (int64_t pass = 0; pass < section.repeat; ++pass) {
      for (InstructionId id = section.begin; id < section.end; ++id) {
        const Instruction& instruction = program.instructions[id];
        if (instruction.last_pass_only && pass + 1 < section.repeat) continue;
        if (const Op* op = std::get_if<Op>(&instruction.action)) add(*op);
        if (const auto* collective = std::get_if<Collective>(&instruction.action)) work.other_bytes += BytesOf(*collective);
      }
    }
  }
  return work;
}

}  // namespace shale
