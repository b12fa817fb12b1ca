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

// Borrows everything it is given. REQUIRES: no program runs meanwhile. Values are fp32, the row-major elements of a
// parameter. The store converts them from and to the form in which the ranks keep them: bf16 weight with fp32 master,
// SPLIT, shards, replicas. A caller may read or write a large parameter range by range and never hold all of it.
class ParameterStore {
 public:
  ParameterStore(const ModelGraph& model, const JobState& state, const MemoryPlan& plan,
                 std::vector<RankRuntime*> ranks);

  const std::vector<Parameter>& parameters() const { return model_.parameters; }
  // Returns the parameter of that name, or NotFound with the name.
  absl::StatusOr<ParameterId> Find(absl::string_view name) const;
  // Like Find, but returns InvalidArgument unless the parameter has `elements` elements.
  absl::StatusOr<ParameterId> FindWhole(absl::string_view name, int64_t elements) const;

  // Writes elements [begin, begin + values.size()) of a parameter: weights and masters, on every rank that holds them.
  absl::Status Write(ParameterId id, int64_t begin, absl::Span<const float> values);
  // Reads elements [begin, begin + values.size()) of the masters, or of the weights if there are no masters.
  absl::Status Read(ParameterId id, int64_t begin, absl::Span<float> values) const;
  // Reads the same elements of the reduced gradient of the last step, before clipping.
  absl::Status ReadGradient(ParameterId id, int64_t begin, absl::Span<float> values) const;

 private:
  // Elements that lie contiguously on one rank.
  struct Piece {
    int rank = 0;
    int64_t from = 0;  // First element, relative to `begin`.
    int64_t count = 0;
    int64_t at = 0;  // First element in the flat tensor of that rank.
  };
  // Returns where elements [begin, begin + count) lie: in what each rank owns if `own`, else in the full replicas.
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
