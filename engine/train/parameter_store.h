// Reads and writes parameters in the sharded state of a job's ranks, by name and logical range.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/memory/plan.h"
#include "engine/runtime/executor.h"
#include "engine/step/compile.h"

namespace shale {

// Borrows everything it is given. Use while no program runs. Values are fp32, row-major elements of a parameter; how
// they are kept (bf16 weight with fp32 master, SPLIT, slices, replicas) is its business. Staging is bounded: a caller
// that streams a large parameter in ranges never holds it whole.
class ParameterStore {
 public:
  ParameterStore(const ModelGraph& model, const JobState& state, const MemoryPlan& plan,
                 std::vector<RankRuntime*> ranks);

  const std::vector<Parameter>& parameters() const { return model_.parameters; }
  // NotFound names the parameter.
  absl::StatusOr<ParameterId> Find(absl::string_view name) const;
  // As Find, for a caller that brings all its elements: InvalidArgument when their number is another.
  absl::StatusOr<ParameterId> FindWhole(absl::string_view name, int64_t elements) const;

  // Elements [begin, begin + values.size()) of a parameter, on every rank that has a part of them.
  absl::Status Write(ParameterId id, int64_t begin, absl::Span<const float> values);
  // The masters, where there are any, else the weights.
  absl::Status Read(ParameterId id, int64_t begin, absl::Span<float> values) const;
  // The reduced gradient of the last step, before clipping.
  absl::Status ReadGradient(ParameterId id, int64_t begin, absl::Span<float> values) const;

 private:
  // A run of elements that one rank keeps contiguously.
  struct Piece {
    int rank = 0;
    int64_t from = 0;  // First element, relative to `begin`.
    int64_t count = 0;
    int64_t at = 0;  // Element of the flat tensor on that rank.
  };
  std::vector<Piece> PiecesOf(ParameterId id, int64_t begin, int64_t count, bool own) const;
  std::byte* Address(const Tensor& tensor, int rank, int64_t element) const;
  absl::Status WriteWeights(const Tensor& weight, const Piece& piece, const float* values);
  absl::Status ReadFloats(const Tensor& tensor, const Piece& piece, float* values) const;

  const ModelGraph& model_;
  const JobState& state_;
  const MemoryPlan& plan_;
  std::vector<RankRuntime*> ranks_;
};

}  // namespace shale
