#include "tools/bench/step_work.h"

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <variant>

#include "absl/strings/string_view.h"
#include "engine/compile/program/issues.h"
#include "kernels/ops.h"

namespace shale {
namespace {

std::optional<AttentionSize> AttentionOf(const Op& any) {
  const auto size = [](const auto& op, bool backward) {
    const Tensor& q = op.q_BSHD;
    return AttentionSize{.heads = q.dim(0) * q.dim(2),
                         .length = q.dim(1),
                         .width = q.dim(3),
                         .window = op.window,
                         .causal = op.causal,
                         .backward = backward,
                         .dtype = q.dtype};
  };
  if (const auto* forward = any.As<AttentionForward>()) return size(*forward, false);
  if (const auto* backward = any.As<AttentionBackward>()) return size(*backward, true);
  return std::nullopt;
}

int64_t SizeBytes(const Tensor& t) { return t.present() ? t.elements() * SizeOf(t.dtype) : 0; }

// Returns the bytes that one rank reads, which is the size of `full`, plus the bytes of its result.
int64_t BytesOf(const Collective& collective) {
  const Tensor& result =
      collective.local.present() && collective.kind != CollectiveKind::kAllGather ? collective.local : collective.full;
  return SizeBytes(collective.full) + SizeBytes(result);
}

// Tracks which operands b are packed already.
class PackedOperands {
 public:
  // Marks `b` of a matmul in that iteration as packed. Returns false if it was packed already.
  bool Add(const Tensor& b, bool transposed, int64_t iteration) {
    return packed_.emplace(b.where.symbol, b.where.offset_bytes, b.elements(), transposed, iteration).second;
  }
  // Marks all operands in the buffer as not packed, because it was written.
  void Forget(BufferId buffer) {
    packed_.erase(packed_.lower_bound({buffer, 0, 0, false, 0}), packed_.lower_bound({buffer + 1, 0, 0, false, 0}));
  }

 private:
  std::set<std::tuple<BufferId, int64_t, int64_t, bool, int64_t>> packed_;
};

}  // namespace

StepWork WorkOf(const StepProgram& program) {
  StepWork work;
  std::map<MatMulSize, size_t> known;
  PackedOperands packed;
  // A buffer with a slot for each micro-batch has different contents in each iteration.
  const auto slot = [&](const Tensor& t, int64_t iteration) {
    return program.buffers[t.where.symbol].slots > 1 ? iteration : 0;
  };
  const auto add = [&](const Op& any, int64_t iteration) {
    const size_t before = work.order.size();
    std::visit(
        [&](const auto& op) {
          // Matches every op that multiplies two matrices, whatever its name.
          if constexpr (requires { op.m(), op.n(), op.k(), op.a, op.b, op.c_MN; }) {
            const MatMulSize shape{.m = op.m(),
                                   .n = op.n(),
                                   .k = op.k(),
                                   .transposed_a = op.transpose_a,
                                   .dtype = op.a.dtype,
                                   .c_dtype = op.c_MN.dtype};
            const auto [at, is_new] = known.emplace(shape, work.shapes.size());
            if (is_new) work.shapes.push_back(shape);
            work.order.push_back(at->second);
            if (packed.Add(op.b, op.transpose_b, slot(op.b, iteration))) work.packed_bytes += 2 * SizeBytes(op.b);
          }
        },
        any.kinds());
    if (work.order.size() > before) return;
    if (const std::optional<AttentionSize> attention = AttentionOf(any); attention.has_value()) {
      ++work.attention[*attention];
      work.attention_flops += FlopsOf(any);
      return;
    }
    const OpTraffic traffic = TrafficOf(any);
    work.other_bytes += static_cast<int64_t>(traffic.bytes_read + traffic.bytes_written);
  };
  for (const Issue& issue : IssuesOf(program)) {
    const Instruction& instruction = program.instructions[issue.id];
    if (const Op* op = std::get_if<Op>(&instruction.action)) add(*op, issue.iteration);
    if (const auto* collective = std::get_if<Collective>(&instruction.action)) work.other_bytes += BytesOf(*collective);
    VisitInstruction(instruction, issue.first_iteration(), [&](absl::string_view, const Tensor& t, Access access) {
      if (access != Access::kRead) packed.Forget(t.where.symbol);
    });
  }
  return work;
}

}  // namespace shale
