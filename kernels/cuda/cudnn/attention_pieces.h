// What of attention cuDNN computes, in which pieces, and in how much workspace: from shapes, strides and dtypes alone,
// so that a plan made without a GPU is the plan of the run, and the bits of a result do not depend on the machine.
//
// B sequences of S positions, H query heads, G key/value heads, D head width.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/ops.h"

namespace shale::cuda {

// A key/value head with its query heads cannot be split further. If that alone needs more, our kernels do it: 32,768
// positions with one query head, 16,384 with seven.
inline constexpr int64_t kLargestWorkspaceBytes = int64_t{4} << 30;

// bf16, D of 64, 96 or 128, at least two positions (cuDNN refuses one), and rows that begin at multiples of 16 bytes,
// which its kernels take for granted. Those of lse too, so that S is a multiple of four, for a piece begins at any row.
bool TakenByCudnn(const AttentionForward& op);
bool TakenByCudnn(const AttentionBackward& op);

// An upper bound for cuDNN 9.16 and newer on compute capability 8.0 to 12.0 (on 10.x 9.18 and newer: older versions
// have no deterministic backward there):
//   forward   256
//   backward  4 B H S                                rowsum(d_out * out)
//             + 4 B H S D, if G < H                  d_k and d_v of each query head, before they are summed
//             + 2 B H [S up to 64] [S up to 128]     ds, which makes the backward deterministic;
//               but at least 4 B H S D, if G < H       for compute capability 10
//             + 256
// The library itself was asked, without a GPU: attention_workspace.txt, which tests compare with this. What is needed,
// by compute capability:
//   9.0         this to the byte, without the "at least" (which exceeds ds for some S up to 128)
//   8.x, 12.0   ds of [S up to 64]^2 only, and 128 instead of 256; no bytes forward
//   10.x        no ds, but d_k and d_v in fp32: 4 B H S D more, if G < H, and 128; else only 4 B H S; no bytes forward
int64_t WorkspaceBytes(const AttentionKey& key);

// A part of a backward op that is computed on its own: some sequences with all heads, or some heads of one sequence.
struct AttentionPiece {
  int64_t first_sequence = 0, sequences = 0, first_group = 0, groups = 0;
};

// Pieces of about one size that need at most `workspace_bytes` each, or are of one key/value head. Every sequence and
// head is in one of them. REQUIRES: TakenByCudnn.
std::vector<AttentionPiece> PiecesOf(const AttentionBackward& op, int64_t workspace_bytes);

// The op of a piece: the same memory, fewer sequences or heads.
AttentionBackward OpOf(const AttentionBackward& op, const AttentionPiece& piece);

}  // namespace shale::cuda
