#include "kernels/cuda/cudnn/attention_pieces.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

constexpr int64_t kAlignmentBytes = 16;
constexpr int64_t kOtherBytes = 256;  // Needed by every graph, whatever its shape.

// Returns whether the rows of `t` begin at multiples of kAlignmentBytes. Buffers begin at such multiples, so the offset
// in the buffer decides for a tensor that is not bound to memory yet.
bool Aligned(const Tensor& t) {
  int64_t bytes = t.data != nullptr ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(t.data))
                                    : t.where.offset_bytes | t.where.shard_stride_bytes;
  for (int axis = 0; axis + 1 < t.rank; ++axis) {
    if (t.dim(axis) > 1) bytes |= t.stride(axis) * SizeOf(t.dtype);
  }
  return bytes % kAlignmentBytes == 0;
}

// Returns the bytes of workspace that a backward graph needs for each query head of each sequence.
int64_t BytesPerHead(const AttentionKey& key) {
  const int64_t S = key.length, per_query_head = key.groups < key.heads ? 4 * S * key.width : 0;
  if (!key.deterministic) return 4 * S + per_query_head + 4 * RoundUp(S, 8) * key.width;
  const int64_t ds = 2 * RoundUp(S, 64) * RoundUp(S, 128);
  return 4 * S + per_query_head + std::max(ds, per_query_head);
}

template <class OpType>
bool Takes(const OpType& op) {
  const int64_t S = op.q_BSHD.dim(1), D = op.q_BSHD.dim(3);
  if (op.q_BSHD.dtype == DType::kFloat32 || (D != 64 && D != 96 && D != 128)) return false;
  if (op.cap > 0) return false;  // cuDNN has no op for it.
  if (S < 2 || S > std::numeric_limits<int32_t>::max()) return false;
  bool aligned = true;
  OpType::Visit(op, [&](absl::string_view, const Tensor& t, Access) { aligned = aligned && Aligned(t); });
  if (!aligned || op.position_ids_BS.present()) return false;
  const AttentionKey key = AttentionKey::Of(op);
  return key.heads / key.groups * BytesPerHead(key) + kOtherBytes <= kLargestWorkspaceBytes;
}

// Splits [0, count) into parts of about equal size, at most `most` each, and calls add(first, size) for every part.
template <class Add>
void Split(int64_t count, int64_t most, const Add& add) {
  const int64_t parts = CeilDivide(count, most), size = CeilDivide(count, parts);
  for (int64_t first = 0; first < count; first += size) add(first, std::min(size, count - first));
}

}  // namespace

bool TakenByCudnn(const AttentionForward& op) { return Takes(op); }
bool TakenByCudnn(const AttentionBackward& op) { return Takes(op); }

int64_t WorkspaceBytes(const AttentionKey& key) {
  return key.backward ? key.batch * key.heads * BytesPerHead(key) + kOtherBytes : kOtherBytes;
}

std::vector<AttentionPiece> PiecesOf(const AttentionKey& key, int64_t workspace_bytes) {
  const int64_t of_group = key.heads / key.groups * BytesPerHead(key), of_sequence = key.groups * of_group;
  const int64_t sequences = (workspace_bytes - kOtherBytes) / of_sequence;
  std::vector<AttentionPiece> pieces;
  if (sequences > 0) {
    Split(key.batch, sequences, [&](int64_t first, int64_t count) {
      pieces.push_back({.first_sequence = first, .sequences = count, .first_group = 0, .groups = key.groups});
    });
    return pieces;
  }
  const int64_t groups = std::max<int64_t>(1, (workspace_bytes - kOtherBytes) / of_group);
  for (int64_t b = 0; b < key.batch; ++b) {
    Split(key.groups, groups, [&](int64_t first, int64_t count) {
      pieces.push_back({.first_sequence = b, .sequences = 1, .first_group = first, .groups = count});
    });
  }
  return pieces;
}

AttentionBackward OpOf(const AttentionBackward& op, const AttentionPiece& piece) {
  const int64_t groups = op.k_BSGD.dim(2);
  AttentionBackward part = op;
  AttentionBackward::Visit(part, [&](absl::string_view, Tensor& t, Access) {
    if (!t.present()) return;
    const int heads_axis = &t == &part.lse_BHS ? 1 : 2;
    const int64_t heads_per_group = t.dim(heads_axis) / groups;
    t = t.Slice(0, piece.first_sequence, piece.sequences)
            .Slice(heads_axis, piece.first_group * heads_per_group, piece.groups * heads_per_group);
  });
  return part;
}

}  // namespace shale::cuda
