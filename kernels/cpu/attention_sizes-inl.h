// Divides attention into strips, groups and tiles, and lays out its scratch, for the forward and the backward kernel.
//
// A thread computes one item at a time. In the forward kernel an item is one head of a sequence; in the backward kernel
// it is all heads of a sequence that share a key head. The thread takes the item's queries kQueries at a time. Their
// scores with all keys form a strip of kQueries rows, so memory is linear in S. Keys and values are packed: copied into
// scratch, in the order in which the matmuls read them, just before the first queries that see them are computed.
// Without a causal mask, that is before the first strip. Matmuls skip what the mask and other documents hide,
// in groups of kGroup queries and slices of kSlice keys.

#if defined(SHALE_KERNELS_CPU_ATTENTION_SIZES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ATTENTION_SIZES_INL_H_
#undef SHALE_KERNELS_CPU_ATTENTION_SIZES_INL_H_
#else
#define SHALE_KERNELS_CPU_ATTENTION_SIZES_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/integers.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// A matmul keeps the sums of a group and two vectors of columns in registers. AVX-512 has 32 registers, of which sums
// of 8 x 2 vectors make good use. Other instruction sets have 16: 6 x 2 sums leave three for the operands, and are
// enough to keep both multipliers busy.
constexpr bool kManyRegisters = HWY_MAX_BYTES >= 64;
constexpr int64_t kQueries = kManyRegisters ? 32 : 48;  // Rows of a strip.
constexpr int64_t kGroup = kManyRegisters ? 8 : 6;      // Rows of one matmul.
constexpr int64_t kTile = kManyRegisters ? 32 : 16;     // Columns of one matmul.
constexpr int64_t kSlice = kTile / 2;                   // A multiple of every vector.
static_assert(HWY_MAX_BYTES <= 64 && kQueries % kGroup == 0 && kQueries % kTile == 0 && kTile % kSlice == 0);

struct AttentionSizes {
  template <class OpType>
  explicit AttentionSizes(const OpType& op)
      : s(op.q_BSHD.dim(1)), d(op.q_BSHD.dim(3)), window(op.window < s ? op.window : 0), causal(op.causal) {}

  int64_t s, d;
  int64_t window;  // 0 if there is none, or if it hides nothing.
  bool causal;
  const int32_t* position_ids = nullptr;  // Of the sequence that is computed ([Note: position ids]), or null.

  // A multiple of strips, and so of groups and tiles.
  int64_t padded_s() const { return RoundUp(s, kQueries); }
  int64_t padded_d() const { return RoundUp(d, kTile); }
  // Distance from one row of a strip to the next, in floats. It is an odd number of cache lines, so that the rows lie
  // in different cache sets.
  int64_t strip_stride() const { return RoundUp(padded_s(), 32) + 16; }
  // The first position of the document that query i belongs to. Queries past the last one belong to its document.
  int64_t DocumentOf(int64_t i) const {
    return position_ids == nullptr ? 0 : std::min(i, s - 1) - position_ids[std::min(i, s - 1)];
  }
  // Query i sees the keys [FirstKey(i), EndKey(i)). The first query that sees key j is FirstQuery(j).
  int64_t FirstKey(int64_t i) const { return window > 0 ? std::max(DocumentOf(i), i - window + 1) : DocumentOf(i); }
  int64_t EndKey(int64_t i) const { return causal ? std::min(i + 1, s) : s; }
  int64_t FirstQuery(int64_t j) const { return causal ? j : 0; }
  // Returns how many of the `rows` queries from i0 on see a key up to `key`, which is not after the last of them. They
  // are the first ones.
  int64_t RowsSeeingUpTo(int64_t key, int64_t i0, int64_t rows) const {
    if (window > 0) rows = std::min(rows, key + window - i0);
    while (position_ids != nullptr && rows > 0 && DocumentOf(i0 + rows - 1) > key) --rows;
    return rows;
  }
  // The first key of the group that holds FirstKey(i). The gradients of keys are computed in groups too.
  int64_t FirstGroup(int64_t i) const { return RoundDown(FirstKey(i), kGroup); }
  // The first key of the tile that holds FirstGroup(i). It is column 0 of the strip that begins with query i.
  int64_t Origin(int64_t i) const { return RoundDown(FirstGroup(i), kTile); }
  // Calls pack(j, count) for the keys that the strip of queries [i0, i0 + rows) is the first to see, in ranges
  // [j, j + count) of at most `rows` keys. i0 is a multiple of `rows`.
  template <class Pack>
  void ForNewKeys(int64_t i0, int64_t rows, const Pack& pack) const {
    const int64_t end = causal ? std::min(i0 + rows, s) : i0 == 0 ? s : 0;
    for (int64_t j = i0; j < end; j += rows) pack(j, std::min(rows, s - j));
  }
};

// The range of slices that covers the groups of keys that any query of the group sees. The group begins with query i.
struct SliceRange {
  SliceRange(const AttentionSizes& sizes, int64_t i)
      : begin(RoundDown(sizes.FirstGroup(i), kSlice)), end(RoundUp(sizes.EndKey(i + kGroup - 1), kSlice)) {}

  int64_t begin, end;
};

// Carves arrays of floats out of scratch, each aligned to 64 bytes. If `data` is null, it only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* data) : data_(reinterpret_cast<float*>(data)) {}
  float* Take(int64_t floats) {
    float* taken = data_ == nullptr ? nullptr : data_ + taken_;
    taken_ += RoundUp(floats, 16);
    return taken;
  }
  // Total size of the arrays, rounded up to a multiple of 256.
  int64_t size_bytes() const { return RoundUp(taken_ * static_cast<int64_t>(sizeof(float)), 256); }

 private:
  float* data_;
  int64_t taken_ = 0;
};

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
