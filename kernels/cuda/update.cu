// Runs an Update with the kernels of its rule. Their shared code is in update.h.
#include <variant>

#include "kernels/cuda/update.h"
#include "kernels/element_range.h"

namespace shale::cuda {

std::vector<int64_t> EdgesOf(const Update& op) {
  std::vector<int64_t> edges;
  if (op.decayed == nullptr) return edges;
  for (const ElementRange& range : *op.decayed) {
    const ElementRange own =
        Intersect({range.begin - op.shard_begin, range.end - op.shard_begin}, {0, op.weight_P.elements()});
    if (own.begin == own.end) continue;
    if (!edges.empty() && edges.back() == own.begin) {
      edges.back() = own.end;
    } else {
      edges.insert(edges.end(), {own.begin, own.end});
    }
  }
  return edges;
}

Update PartOf(Update op, int64_t begin, int64_t end) {
  for (Tensor* t : {&op.gradient_P, &op.weight_P, &op.master_P, &op.low_P}) {
    if (t->present()) *t = t->Slice(0, begin, end - begin);
  }
  op.shard_begin += begin;
  const absl::Span<const UpdateState> states = StatesOf(op.rule);
  for (size_t i = 0; i < states.size(); ++i) {
    const int64_t block = states[i].block;
    op.states[i] = op.states[i].Slice(0, begin / block, CeilDivide(end - begin, block));
  }
  return op;
}

bool HasPacks(const Update& op) {
  bool packs = Aligned16(op.gradient_P) && Aligned16(op.weight_P) && Aligned16(op.master_P) && Aligned16(op.low_P);
  const absl::Span<const UpdateState> states = StatesOf(op.rule);
  for (size_t i = 0; i < states.size(); ++i) packs = packs && (states[i].block > 1 || Aligned16(op.states[i]));
  return packs;
}

absl::Status Run(const Update& op, Scratch scratch, StreamHandle stream) {
  return std::visit([&](const auto& rule) { return StartUpdate(rule, op, stream); }, op.rule);
}

}  // namespace shale::cuda
