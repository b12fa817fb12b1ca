// AttentionRates: how fast cuDNN and Shale's own kernels computed attention, by kind of GPU and shape. By these rates
// the faster of the two computes an attention that both can compute.
//
// S positions of a sequence, D head width.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/availability.h"
#include "kernels/cuda/cudnn/attention_graph.h"

namespace shale::cuda {

class AttentionRates {
 public:
  // Parses a table. Its first line is "shale attention rates 1". The others are rows:
  //
  //   9.0 backward D=64 S=4096 causal: own 170 cudnn 152 free 307
  //
  // A row begins with the compute capability, the direction, the shape and the mask ("causal", "window=1024" or "all").
  // The rates follow, in TFLOP/s of two matmuls forward and of five backward: `own` of Shale's kernels, `cudnn` of
  // cuDNN's, whose gradients repeat their bits, and `free` of cuDNN's gradients that do not. What was not measured is
  // left out. A # begins a comment, and empty lines are skipped. Returns InvalidArgument, naming the line, for anything
  // else and for a row that occurs twice.
  static absl::StatusOr<AttentionRates> Parse(absl::string_view text);

  // Returns the rates of this kind of GPU alone: none if it is not known or was not measured.
  AttentionRates On(const ComputeCapability& gpu) const;

  // Returns whether Shale's own kernels are faster than those of cuDNN that `key` allows. Looks at rows with the same
  // direction, head width and kind of mask in which both were measured, and of these at the nearest: S and the window
  // of a row may differ by a factor of up to two. Returns false if there is no such row. If the rates are equal, takes
  // the kernels whose gradients repeat their bits, and cuDNN's if both do. REQUIRES: the rates are those of one kind
  // of GPU.
  bool OwnIsFaster(const AttentionKey& key) const;

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }

 private:
  struct Row {
    ComputeCapability gpu;
    bool backward = false;
    int64_t width = 0, length = 0;  // D, S
    bool causal = true;
    int64_t window = 0;                   // 0: none.
    double own = 0, cudnn = 0, free = 0;  // 0: not measured.

    bool IsAbout(const Row& other) const;
  };

  static absl::StatusOr<Row> ParseRow(absl::string_view line);

  std::vector<Row> rows_;  // In the order of the text.
};

}  // namespace shale::cuda
