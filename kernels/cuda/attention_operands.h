// Operands of the attention kernels, and which keys a query sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {

// A [B, S, H, D] operand; its strides are in elements.
template <class T>
struct Heads {
  Global<T> at;
  int64_t batch_stride, position_stride, head_stride;
  int length, width;  // S, D
  bool packs;         // Rows are aligned, whole packs of 16 bytes.

  Heads(const Tensor& t, const char* name)
      : at(Whole<T>(t, name)),
        batch_stride(t.strides[0]),
        position_stride(t.strides[1]),
        head_stride(t.strides[2]),
        length(static_cast<int>(t.shape[1])),
        width(static_cast<int>(t.shape[3])),
        packs(RowsAligned(t) && t.shape[3] % kPackOf<T> == 0) {}

  SHALE_DEVICE int64_t Begin(int b, int position, int h) const {
    return b * batch_stride + position * position_stride + h * head_stride;
  }
};

// Says which of a sequence's `length` keys a query sees. A position id that is negative or past its token's position in
// the sequence, which is not valid, is taken for that position (see PositionOf). So the results are wrong, but no
// access is outside of the operands, and each query sees itself.
struct Mask {
  bool causal;
  int window;  // 0: a query sees every key up to its own position, or, if not causal, every key.
  int length;
  Global<int32_t> position_ids_BS;  // [Note: position ids]; absent if every sequence is one document.
  template <class OpType>
  explicit Mask(const OpType& op)
      : causal(op.causal),
        window(static_cast<int>(std::min(op.window, op.q_BSHD.shape[1]))),
        length(static_cast<int>(op.q_BSHD.shape[1])),
        position_ids_BS(Whole<int32_t>(op.position_ids_BS, "position_ids")) {}
  // `first` is FirstKey of the query.
  SHALE_DEVICE bool Sees(int query, int key, int first) const {
    return causal ? key <= query && key >= first : key < length;
  }
  // The keys that `query` of sequence b sees begin with FirstKey, and those that queries up to `query` see end at
  // EndOfKeys. The queries that see keys from `key` on begin with FirstQuery, and those that see `key` end at
  // EndOfQueries, or before it if there are position ids: at the first query whose FirstKey is larger.
  SHALE_DEVICE int FirstKey(int b, int query) const {
    const int first = window > 0 && query >= window ? query - window + 1 : 0;
    if (!position_ids_BS.present() || query >= length) return first;
    const int64_t t = static_cast<int64_t>(b) * length + query;
    const int document = query - static_cast<int>(PositionOf(position_ids_BS, t, query));
    return document > first ? document : first;
  }
  SHALE_DEVICE int EndOfKeys(int query) const { return causal && query < length ? query + 1 : length; }
  SHALE_DEVICE int FirstQuery(int key) const { return causal ? key : 0; }
  SHALE_DEVICE int EndOfQueries(int key) const { return window > 0 && key < length - window ? key + window : length; }
};

// What the kernels of backward read.
template <class T>
struct AttentionInputs {
  Heads<T> q, k, v, d_out;
  Global<float> lse_BHS, delta_BHS;
  int heads, heads_per_group;
  Mask mask;
  float scale, cap;

  template <class OpType>
  AttentionInputs(const OpType& op, const Global<float>& delta)
      : q(op.q_BSHD, "q"),
        k(op.k_BSGD, "k"),
        v(op.v_BSGD, "v"),
        d_out(op.d_out_BSHD, "d_out"),
        lse_BHS(Whole<float>(op.lse_BHS, "lse")),
        delta_BHS(delta),
        heads(static_cast<int>(op.q_BSHD.shape[2])),
        heads_per_group(static_cast<int>(op.q_BSHD.shape[2] / op.k_BSGD.shape[2])),
        mask(op),
        scale(op.scale),
        cap(op.cap) {}

  // The scale of scores after the cap, which takes the scale in.
  SHALE_DEVICE float LeftScale() const { return cap > 0 ? 1.0f : scale; }
  // Caps the score of a query and a key, and multiplies the distance of d_out v from delta by the derivative of the
  // cap. REQUIRES: cap > 0.
  SHALE_DEVICE void Cap(float delta, float& q_k, float& d_out_v) const {
    const float t = tanhf(q_k * scale / cap);
    q_k = cap * t;
    d_out_v = fmaf(d_out_v - delta, fmaf(-t, t, 1.0f), delta);
  }
};

}  // namespace shale::cuda
