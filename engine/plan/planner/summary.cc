#include "engine/plan/planner/summary.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <unordered_set>

#include "engine/compile/graph/graph.h"
#include "engine/compile/program/issues.h"
#include "engine/compile/program/live_bytes.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Add and multiply numbers that are not negative. Stop at the largest int64 instead of wrapping around.
int64_t SaturatedAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

int64_t SaturatedMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

__extension__ using Wide = unsigned __int128;

// Returns the bytes that one of `ranks` ranks sends when vectors of `moved` bytes in total go around their ring.
int64_t RingBytes(int64_t ranks, Wide moved) {
  // Divides first if the product would overflow; the last few bytes do not matter then.
  const Wide limit = ~Wide{0} / static_cast<Wide>(ranks);
  const Wide sent = moved <= limit ? moved * (ranks - 1) / ranks : moved / ranks * (ranks - 1);
  return static_cast<int64_t>(std::min<Wide>(sent, std::numeric_limits<int64_t>::max()));
}

// Returns the buffers that hold logits and then, in place, their gradient. Matmuls that read them count as backward.
std::unordered_set<BufferId> LogitsGradients(const StepProgram& program) {
  std::unordered_set<BufferId> buffers;
  for (const Instruction& instruction : program.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const CrossEntropy* loss = op == nullptr ? nullptr : op->As<CrossEntropy>();
    if (loss != nullptr && loss->gradient) buffers.insert(loss->logits_TV.where.symbol);
  }
  return buffers;
}

}  // namespace

CommunicationSummary SummarizeCommunication(const StepProgram& program, const Mesh& mesh) {
  CommunicationSummary s;
  std::array<Wide, kMeshAxes> moved = {};  // Bytes that go around the rings along each axis.
  VisitWithTimes(program, [&](const Instruction& instruction, int64_t times) {
    const auto* collective = std::get_if<Collective>(&instruction.action);
    if (collective == nullptr) return;
    const auto add = [&](int64_t& count, int64_t& bytes, int rounds) {
      const int64_t all = SaturatedMultiply(collective->full.elements() * SizeOf(collective->full.dtype), times);
      count = SaturatedAdd(count, times);
      bytes = SaturatedAdd(bytes, all);
      moved[static_cast<size_t>(mesh.Serving(collective->axis))] += static_cast<Wide>(rounds) * static_cast<Wide>(all);
    };
    switch (collective->kind) {
      case CollectiveKind::kAllGather: return add(s.gathers, s.gathered_bytes, 1);
      case CollectiveKind::kReduceScatterSum:
      case CollectiveKind::kAllToAll: return add(s.reductions, s.reduced_bytes, 1);
      case CollectiveKind::kAllReduceSum: return add(s.all_reduces, s.all_reduced_bytes, 2);
    }
  });
  for (const MeshAxis axis : {MeshAxis::kShard, MeshAxis::kReplicate, MeshAxis::kAll}) {
    const int64_t sent = RingBytes(mesh.size(axis), moved[static_cast<size_t>(axis)]);
    s.sent_bytes = SaturatedAdd(s.sent_bytes, sent);
    if (axis != MeshAxis::kShard) s.sent_between_groups_bytes = SaturatedAdd(s.sent_between_groups_bytes, sent);
  }
  return s;
}

bool IsOffloadedActivation(const Buffer& buffer) {
  if (buffer.memory != MemoryKind::kHost || buffer.persistent) return false;
  switch (buffer.category) {
    case BufferCategory::kActivations:
    case BufferCategory::kActivationBoundaries:
    case BufferCategory::kWorkspace:
    case BufferCategory::kLossWorkspace: return true;
    default: return false;
  }
}

OffloadSummary SummarizeOffload(const StepProgram& program) {
  OffloadSummary s;
  VisitWithTimes(program, [&](const Instruction& instruction, int64_t times) {
    const auto* transfer = std::get_if<Transfer>(&instruction.action);
    if (transfer == nullptr) return;
    const Buffer& host = program.buffers[transfer->host.where.symbol];
    if (host.category == BufferCategory::kData) return;  // The scalars of an update on the host.
    const bool gradient =
        host.category == BufferCategory::kGradientShards || host.category == BufferCategory::kUnshardedGradients;
    const bool activation = IsOffloadedActivation(host);
    s.tensors += transfer->to_host && activation;
    int64_t& bytes = gradient            ? s.gradient_bytes
                     : transfer->to_host ? (activation ? s.offloaded_bytes : s.state_returned_bytes)
                                         : (activation ? s.fetched_bytes : s.state_fetched_bytes);
    bytes = SaturatedAdd(bytes, SaturatedMultiply(transfer->device.extent_bytes(), times));
  });
  return s;
}

FlopsSummary SummarizeFlops(const StepProgram& program) {
  const std::unordered_set<BufferId> logits_gradients = LogitsGradients(program);
  FlopsSummary s;
  VisitWithTimes(program, [&](const Instruction& instruction, int64_t times) {
    const Op* op = std::get_if<Op>(&instruction.action);
    if (op == nullptr) return;
    const double flops = FlopsOf(*op) * static_cast<double>(times);
    const auto* matmul = op->As<MatMul>();
    if (instruction.phase == Phase::kRecompute) {
      s.recompute += flops;
    } else if (instruction.phase == Phase::kForward &&
               !(matmul != nullptr && logits_gradients.contains(matmul->a.where.symbol))) {
      s.forward += flops;
    } else {
      s.backward += flops;
    }
  });
  return s;
}

UpdateMemory MeasureUpdate(const StepProgram& program) {
  UpdateMemory memory;
  VisitLiveBytes(program, [&](InstructionId id, const LiveBytes& live) {
    int64_t& largest = program.instructions[id].phase == Phase::kUpdate ? memory.update_bytes : memory.elsewhere_bytes;
    largest = std::max(largest, live.total);
  });
  return memory;
}

int64_t MeasureActivations(const StepProgram& program) {
  int64_t largest = 0;
  VisitLiveBytes(program, [&](InstructionId, const LiveBytes& live) {
    largest = std::max(largest, live.by_category[static_cast<int>(BufferCategory::kActivations)] +
                                    live.by_category[static_cast<int>(BufferCategory::kActivationBoundaries)]);
  });
  return largest;
}

int64_t AllReducedGradientBytes(const StepProgram& program) {
  int64_t bytes = 0;
  VisitWithTimes(program, [&](const Instruction& instruction, int64_t times) {
    const auto* collective = std::get_if<Collective>(&instruction.action);
    if (collective == nullptr || collective->kind != CollectiveKind::kAllReduceSum) return;
    if (instruction.phase != Phase::kReduce) return;
    bytes = SaturatedAdd(bytes, SaturatedMultiply(collective->full.extent_bytes(), times));
  });
  return bytes;
}

std::vector<OptimizerInUse> OptimizersInUse(const JobState& state) {
  std::set<OptimizerInUse> used;
  for (const GroupState& group : state.groups) {
    if (!group.frozen) used.insert({group.optimizer_group, !group.block_matrices});
  }
  return {used.begin(), used.end()};
}

int64_t CountParameters(const ModelGraph& graph) {
  int64_t count = 0;
  for (const Parameter& parameter : graph.parameters) count = SaturatedAdd(count, parameter.elements());
  return count;
}

int64_t CountTrainedParameters(const ModelGraph& graph) {
  int64_t count = 0;
  for (const Parameter& parameter : graph.parameters) {
    if (!parameter.frozen) count = SaturatedAdd(count, parameter.elements());
  }
  return count;
}

namespace {

// Calls visit(op, times) for the ops of forward and backward that compute matmuls or attention. `times` says how often
// the FLOPs of the op count: the backward of attention counts twice its forward, because it recomputes, and is not
// visited itself.
template <class Visitor>
void VisitCounted(const ModelGraph& graph, const Visitor& visit) {
  for (const UnitGraph& unit : graph.units) {
    const auto is_attention = [](const Node& node) { return node.op.Is<AttentionBackward>(); };
    const bool attention_backward = std::any_of(unit.backward.begin(), unit.backward.end(), is_attention);
    for (const std::vector<Node>* nodes : {&unit.forward, &unit.backward}) {
      for (const Node& node : *nodes) {
        if (is_attention(node)) continue;
        visit(node.op, attention_backward && node.op.Is<AttentionForward>() ? 3 : 1);
      }
    }
  }
}

// Returns the FLOPs of the matmuls and the attention of forward and backward for which `counts` returns true, without
// recomputation, for each token that has a target.
template <class Predicate>
double GraphFlopsPerToken(const ModelGraph& graph, const Predicate& counts) {
  double flops = 0;
  VisitCounted(graph, [&](const Op& op, int times) { flops += counts(op) ? times * FlopsOf(op) : 0; });
  const int64_t targets = graph.micro_batch * (graph.last_target_only ? 1 : graph.sequence_length);
  return flops / static_cast<double>(targets);
}

// Returns whether the FLOPs of a model are those of the ops in its graph. Otherwise a formula gives them.
bool CountsTheGraph(const Job& job, const ModelGraph& graph) {
  const bool any_frozen = std::any_of(graph.groups.begin(), graph.groups.end(), [](auto& g) { return g.frozen; });
  return any_frozen || std::holds_alternative<CustomModel>(job.model);
}

}  // namespace

bool PredictsValues(const ModelGraph& graph) { return NeedsOf(graph).ElementsOf(StepItem::kTargetValues) > 0; }

double DocumentAttentionFlops(const Job& job, const ModelGraph& graph, int64_t length) {
  if (!CountsTheGraph(job, graph)) {
    return static_cast<double>(length) * AttentionFlopsPerToken(job.model, length);
  }
  double flops = 0;
  VisitCounted(graph, [&](const Op& op, int times) {
    const AttentionForward* attention = op.As<AttentionForward>();
    if (attention == nullptr) return;
    AttentionForward document = *attention;
    document.q_BSHD = document.q_BSHD.Slice(0, 0, 1).Slice(1, 0, length);
    flops += times * document.flops();
  });
  return flops;
}

double Float8FlopsPerToken(const ModelGraph& graph) {
  return GraphFlopsPerToken(graph, [](const Op& op) {
    const MatMul* matmul = op.As<MatMul>();
    return matmul != nullptr && matmul->is_float8();
  });
}

double ModelFlopsPerToken(const Job& job, const ModelGraph& graph) {
  if (CountsTheGraph(job, graph)) {
    return GraphFlopsPerToken(graph, [](const Op&) { return true; });
  }
  std::set<ParameterId> computed;
  for (const UnitGraph& unit : graph.units) {
    for (const Node& node : unit.forward) {
      if (node.op.Is<EmbeddingForward>()) continue;
      VisitOperands(node.op, [&](absl::string_view, const Tensor& t, Access) {
        if (!t.present()) return;
        const Value& value = unit.values[t.where.symbol];
        if (value.role == ValueRole::kParameter) computed.insert(value.parameter);
      });
    }
  }
  double parameters = 0;
  for (ParameterId id : computed) parameters += static_cast<double>(graph.parameters[id].elements());
  return 6 * parameters + AttentionFlopsPerToken(job.model, job.batch.sequence_length);
}

}  // namespace shale
