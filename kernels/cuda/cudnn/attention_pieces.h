// Decides which attention ops cuDNN can compute, in which pieces, and in how much workspace. Only shapes, strides,
// dtypes and the alignment of operands decide this, so that a plan made without a GPU is the plan of the run, and the
// bits of a result do not depend on the machine. Where cuDNN and our own kernels can both compute an op, the rates of
// one kind of GPU decide (attention_rates.h).
//
// B sequences of S positions, H query heads, G key/value heads, D head width.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cudnn/attention_graph.h"

namespace shale::cuda {

// The most workspace that one piece may need. A key/value head with its query heads cannot be split further: if it
// alone needs more, our kernels compute the op. 32,768 positions with one query head fit, and 16,384 positions with
// seven query heads.
inline constexpr int64_t kLargestWorkspaceBytes = int64_t{4} << 30;

// Returns whether cuDNN can compute an op. It can if the op is in bf16 or f16 and has no cap, D is 64, 96 or 128, there
// are at least two positions (cuDNN refuses one), one key/value head needs at most kLargestWorkspaceBytes, and rows
// begin at multiples of 16 bytes, which cuDNN's kernels take for granted. A piece may begin at any row, so the rows of
// lse must be aligned too: S must be a multiple of four. There must be no position ids: the number of documents is data
// of the step, and cuDNN's ragged sequences have a number that is part of the graph.
bool TakenByCudnn(const AttentionForward& op);
bool TakenByCudnn(const AttentionBackward& op);

// Returns an upper bound of the bytes of workspace that cuDNN needs. [S up to n] is S rounded up to a multiple of n.
// The bound holds for cuDNN 9.16 and newer on compute capability 8.0 to 12.0 (on 10.x for 9.18 and newer: older
// versions have no deterministic backward there):
//   forward   256
//   backward  4 B H S                                rowsum(d_out * out)
//             + 4 B H S D, if G < H                  d_k and d_v of each query head, before they are summed
//             + 2 B H [S up to 64] [S up to 128]     ds, which makes the backward deterministic;
//               but at least 4 B H S D, if G < H       for compute capability 10
//             + 256
// A backward that is not deterministic has 4 B H [S up to 8] D in the place of ds: d_q in fp32, to which tiles add in
// any order.
// Tests compare this bound with what the library itself answers (tests/kernels/cuda/cudnn/attention_workspace.txt). The
// answers are the same with and without a causal mask. By compute capability, cuDNN needs:
//   9.0         this bound to the byte, without the "at least" (which exceeds ds for some S up to 128)
//   8.x, 12.0   ds of [S up to 64]^2 only, and 128 instead of 256; nothing forward
//   10.x        no ds. If G < H, d_k and d_v in fp32: 4 B H S D more, and 128. Otherwise only 4 B H S. Nothing forward
// and for a backward that is not deterministic:
//   9.0         no d_q
//   8.x, 12.0   128 instead of 256
//   10.x        the same for S up to 128. For longer S no d_q, and 128 only if G < H
int64_t WorkspaceBytes(const AttentionKey& key);

// A part of a backward op that is computed by itself: some sequences with all heads, or some heads of one sequence.
struct AttentionPiece {
  int64_t first_sequence = 0, sequences = 0, first_group = 0, groups = 0;
};

// Splits a backward op, of which `key` is the key, into pieces of about equal size. Each needs at most
// `workspace_bytes` or has a single key/value head. Every sequence and head is in exactly one piece. REQUIRES:
// TakenByCudnn of the op.
std::vector<AttentionPiece> PiecesOf(const AttentionKey& key, int64_t workspace_bytes);

// Returns the op that computes `piece`: views of the same memory with fewer sequences or heads.
AttentionBackward OpOf(const AttentionBackward& op, const AttentionPiece& piece);

}  // namespace shale::cuda
