#include "kernels/cuda/cudnn/attention_graph.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

// Calls visit(operand, tensor) for each operand, in the order of AttentionOperand.
template <class OpType, class VisitTensor>
void VisitInOrder(const OpType& op, const VisitTensor& visit) {
  int operand = 0;
  OpType::Visit(op, [&](absl::string_view, const Tensor& t, Access) {
    if (t.present()) visit(operand++, t);  // There are no position ids (TakenByCudnn).
  });
}

// Sets the stride of a sequence or head axis of size 1, which is never used, to a fixed value. Otherwise ops that
// differ only in such a stride would get two graphs.
AttentionKey::Strides StridesOf(const Tensor& t) {
  AttentionKey::Strides strides = {.sequence = t.stride(0), .position = t.stride(1), .head = t.stride(2)};
  if (t.dim(2) == 1) strides.head = t.dim(3);
  if (t.dim(0) == 1) strides.sequence = t.dim(1) * strides.position;
  return strides;
}

template <class OpType>
AttentionKey KeyOf(const OpType& op) {
  AttentionKey key = {.backward = std::is_same_v<OpType, AttentionBackward>,
                      .batch = op.q_BSHD.dim(0),
                      .length = op.q_BSHD.dim(1),
                      .heads = op.q_BSHD.dim(2),
                      .groups = op.k_BSGD.dim(2),
                      .width = op.q_BSHD.dim(3),
                      .window = op.window < op.q_BSHD.dim(1) ? op.window : 0,
                      .causal = op.causal,
                      .dtype = op.q_BSHD.dtype,
                      .scale = op.scale};
  VisitInOrder(op, [&](int operand, const Tensor& t) {
    if (operand != kLse) key.strides[operand] = StridesOf(t);
  });
  return key;
}

template <class OpType>
AttentionAddresses Addresses(const OpType& op) {
  AttentionAddresses addresses = {};
  VisitInOrder(op, [&](int operand, const Tensor& t) { addresses[operand] = t.data; });
  return addresses;
}

}  // namespace

AttentionKey AttentionKey::Of(const AttentionForward& op) { return KeyOf(op); }
AttentionKey AttentionKey::Of(const AttentionBackward& op) { return KeyOf(op); }

AttentionAddresses AddressesOf(const AttentionForward& op) { return Addresses(op); }
AttentionAddresses AddressesOf(const AttentionBackward& op) { return Addresses(op); }

std::string AttentionKey::ToString() const {
  return absl::StrCat("attention ", backward ? "backward" : "forward", " B=", batch, " S=", length, " H=", heads,
                      " G=", groups, " D=", width, " window=", window, " scale=", scale,
                      dtype == DType::kBFloat16 ? "" : ", f16", causal ? "" : ", not causal",
                      deterministic ? "" : ", not deterministic");
}

}  // namespace shale::cuda
