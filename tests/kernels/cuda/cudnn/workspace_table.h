// A WorkspaceTable holds what cuDNN itself answered for the workspace of attention, by GPU and shape. Its text:
//
//   # cuDNN 9.19.0 was asked ...
//   #direction   B     S   H  G   D   mask window         8.0         9.0
//     backward   1  4096  28  4 128 causal      0   998703232   998703360
//
// attention_workspace.txt in this folder is such a text, printed by make_workspace_table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "tests/kernels/cuda/cudnn/attention_ops.h"

namespace shale::testing {

struct WorkspaceRow {
  int compute_major = 0, compute_minor = 0;  // The compute capability of the GPU.
  bool backward = false;
  bool deterministic = true;
  AttentionShape shape;  // Without a gap: it must not matter and is not in the text.
  int64_t bytes = 0;

  // Returns "9.0 backward B=2 S=4096 H=28 G=4 D=128 window=0", for messages.
  std::string Question() const;
  bool operator==(const WorkspaceRow&) const = default;
};

// Returns the attention to ask cuDNN for, with `gap` columns between the rows of q, k and v.
cuda::AttentionKey KeyOf(const WorkspaceRow& row, int64_t gap = 0);

struct WorkspaceTable {
  std::string version;             // The version of cuDNN, such as "9.19.0".
  std::vector<WorkspaceRow> rows;  // Those of one GPU after those of another.

  // Prints a line for each shape, with the bytes of every GPU. REQUIRES: each GPU has the same shapes in the same
  // order.
  std::string Print() const;
  // Parses exactly what Print returns. Otherwise returns InvalidArgument, which names the line.
  static absl::StatusOr<WorkspaceTable> Parse(absl::string_view text);
};

// Reads the committed table. Returns NotFound if the test does not have it among its data.
absl::StatusOr<WorkspaceTable> ReadCommittedTable();

}  // namespace shale::testing
