// The data that passes between the host and a rank's device in one run of a program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {

// The data that one run of a program takes from the host, for one rank. The program's StepItemCopy instructions
// determine the sizes; what it does not copy may be missing.
class StepInputs {
 public:
  // Set an item, and return what was set. The K micro-batches of an item of a micro-batch lie one after
  // another. Borrows the elements. REQUIRES: T is as wide as the dtype of the item, which is none of the members below.
  template <class T>
  void Set(StepItem item, absl::Span<const T> elements) {
    SHALE_CHECK(sizeof(T) == SizeOf(RowOf(item).dtype)) << ToString(item);
    items_[static_cast<int>(item)] = {reinterpret_cast<const std::byte*>(elements.data()), elements.size() * sizeof(T)};
  }
  template <class T>
  void Set(StepItem item, const std::vector<T>& elements) {
    Set(item, absl::MakeConstSpan(elements));
  }
  template <class T>
  absl::Span<const T> Get(StepItem item) const {
    SHALE_CHECK(sizeof(T) == SizeOf(RowOf(item).dtype)) << ToString(item);
    const absl::Span<const std::byte> bytes = items_[static_cast<int>(item)];
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Returns the bytes of an item, also of the members below.
  absl::Span<const std::byte> Bytes(StepItem item) const;

  std::array<float, kHyperSize> hyper = {};
  int64_t valid_tokens = 0;  // On this rank.
  double weight_total = 0;   // The sum of |weight| over the valid tokens of this rank.

 private:
  std::array<absl::Span<const std::byte>, kStepItems> items_;
};

// The data that one run of a program gives to the host, for one rank.
struct StepOutputs {
  std::array<double, kTotalSize> totals = {};  // Summed over all ranks.
  int64_t global_tokens = 0;
  double global_weight = 0;                            // The sum of |weight| over all ranks; 0 without weights.
  std::array<double, kLossScaleSize> loss_scale = {};  // For the next step; 0 without loss scaling.
  std::vector<std::byte> logits;                       // [B, V], as ModelGraph::logits.
};

// The items that a program copies from and to the host, in the rank's pinned memory.
class StepItems {
 public:
  // Borrows `memory`. REQUIRES: it has at least layout.size_bytes() bytes.
  StepItems(const StepItemLayout& layout, absl::Span<std::byte> memory);

  // Stores the inputs that the program copies to the device, and numbers the micro-batches. Returns InvalidArgument,
  // naming the item, if one has too few elements.
  absl::Status Take(const StepInputs& inputs);
  // Sets `outputs` to the items that came from the device. REQUIRES: none of the program's copies is still running.
  void Give(StepOutputs& outputs) const;
  // Source and destination of a host copy in one iteration of its loop. The same in every run.
  struct Ends {
    void* to = nullptr;
    const void* from = nullptr;
  };
  Ends EndsOf(const StepItemCopy& copy, int64_t iteration) const;

 private:
  // Returns where an item lies in one iteration of its loop.
  std::byte* At(StepItem item, int64_t iteration) const;
  absl::Status Put(StepItem item, absl::Span<const std::byte> from);
  void Get(StepItem item, void* to) const;

  StepItemLayout layout_;
  absl::Span<std::byte> memory_;
};

}  // namespace shale
