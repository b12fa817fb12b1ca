// What iterations between the host and a rank's device in one run of a program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/memory/host_plan.h"
#include "engine/program/program.h"
#include "kernels/ops.h"

namespace shale {

// The host's side of a step, for one rank. Sizes as the program's HostCopy instructions want them; micro-batch by
// micro-batch.
struct StepInputs {
  absl::Span<const int32_t> inputs;   // [K, B, S]
  absl::Span<const int32_t> targets;  // [K, B, S]
  absl::Span<const int32_t> rows;     // [B]
  std::array<float, kHyperSize> hyper = {};
  int64_t valid_tokens = 0;  // Of this rank.
};

struct StepOutputs {
  std::array<double, kTotalSize> totals = {};  // Over all ranks.
  int64_t global_tokens = 0;
  std::vector<std::byte> logits;  // [B, V] in the compute dtype.
};

// What a program copies from and to the host, in the rank's pinned memory.
class HostItems {
 public:
  // Borrows `memory`. REQUIRES: it has layout.size_bytes().
  HostItems(const HostItemLayout& layout, absl::Span<std::byte> memory);

  // Sets what goes to the device. InvalidArgument names an item that has too few elements.
  absl::Status Take(const StepInputs& inputs);
  // What came from the device; none of the program's copies may be under way.
  void Give(StepOutputs& outputs) const;
  // Between what a bound copy goes in a iteration of its loop: the same in every run.
  struct Ends {
    void* to = nullptr;
    const void* from = nullptr;
  };
  Ends EndsOf(const HostCopy& copy, int64_t iteration) const;

 private:
  // Where the item of a iteration of its loop lies.
  std::byte* At(HostItem item, int64_t iteration) const;
  absl::Status Put(HostItem item, const void* from, int64_t size_bytes);
  void Get(HostItem item, void* to) const;

  HostItemLayout layout_;
  absl::Span<std::byte> memory_;
};

}  // namespace shale
