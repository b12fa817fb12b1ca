#include "engine/plan/planner/generation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/model/model.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/job_plan.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"

namespace shale {
namespace {

// Returns the lengths of the chunks that a context of `positions` tokens is computed in. Long chunks make good use of a
// matmul's operands. A ring of keys must have room for the longest (GraphBuilder::NewCache), so it is short beside the
// context.
std::vector<int64_t> ChunkLengths(int64_t positions) {
  constexpr int64_t kShort = 16, kLong = 256;
  const int64_t longest = std::min(positions, std::clamp(positions / 4, kShort, kLong));
  std::vector<int64_t> lengths = {1};
  if (longest > kShort) lengths.push_back(kShort);
  if (longest > 1) lengths.push_back(longest);
  return lengths;
}

absl::StatusOr<ModelGraph> BuildChunk(const Job& job, int64_t sequences, int64_t length, const Cache& cache) {
  GraphOptions options = GraphOptionsFor(job, GraphMode::kLogits);
  options.micro_batch = sequences;
  options.sequence_length = length;
  options.cache = cache;
  return BuildModel(job.model, options);
}

// Returns whether a custom model computes each token from the tokens of its cache alone, as far as can be told: it can
// be built for a chunk of one token, and has the same parameters then.
bool TakesChunks(const Job& job, const ModelGraph& window) {
  const absl::StatusOr<ModelGraph> one =
      BuildChunk(job, 1, 1, {.positions = window.sequence_length, .longest_chunk = 1});
  return one.ok() && CheckSameParameters(window, *one, "chunks").ok();
}

absl::Status CheckPositions(const Job& job, int64_t positions) {
  const auto* decoder = std::get_if<DecoderConfig>(&job.model);
  if (decoder == nullptr || positions <= decoder->max_positions) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a sequence of ", positions, " tokens is wanted, and the model has ", decoder->max_positions,
                   " positions (model.decoder.max_positions); ask for at most ", decoder->max_positions));
}

}  // namespace

absl::StatusOr<std::vector<ModelGraph>> BuildGeneration(const Job& job, const GenerationSize& size,
                                                        const WorkLimits& limits) {
  const int64_t window = job.batch.sequence_length, positions = size.positions > 0 ? size.positions : window;
  SHALE_CHECK(size.sequences >= 1);
  SHALE_RETURN_IF_ERROR(CheckPositions(job, positions));
  Job sized = job;
  sized.batch.micro_batch = size.sequences;
  sized.batch.sequence_length = std::max(window, positions);
  SHALE_RETURN_IF_ERROR(limits.Check());
  SHALE_RETURN_IF_ERROR(CheckGraphSize(sized, limits));
  std::vector<ModelGraph> graphs;
  const bool custom = std::holds_alternative<CustomModel>(job.model), whole_windows = LastTargetOnly(job.model);
  if (custom || whole_windows) {
    SHALE_ASSIGN_OR_RETURN(ModelGraph graph, BuildChunk(job, size.sequences, window, {}));
    if (whole_windows || !TakesChunks(job, graph)) {
      if (positions == window) {
        graphs.push_back(std::move(graph));
        return graphs;
      }
      return absl::InvalidArgumentError(absl::StrCat("sequences of ", positions,
                                                     " tokens are wanted, and the model reads windows of ", window,
                                                     " tokens (batch.sequence_length); ask for ", window));
    }
  }
  const std::vector<int64_t> lengths = ChunkLengths(positions);
  const Cache cache = {.positions = positions, .longest_chunk = lengths.back(), .sequences = size.sequences};
  for (const int64_t sequences :
       size.sequences > 1 ? std::vector{size.sequences, int64_t{1}} : std::vector{int64_t{1}}) {
    for (const int64_t length : lengths) {
      if (length == 1 && sequences < size.sequences) continue;
      SHALE_RETURN_IF_ERROR(limits.Check());
      SHALE_ASSIGN_OR_RETURN(ModelGraph graph, BuildChunk(job, sequences, length, cache));
      graphs.push_back(std::move(graph));
    }
  }
  if (const int64_t end = EndOfPositions(graphs.back()); end < positions) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", positions,
                                                   " tokens is wanted, and the model has a table of ", end,
                                                   " positions; ask for at most ", end));
  }
  return graphs;
}

int64_t EndOfPositions(const ModelGraph& graph) {
  int64_t end = kNoLastPosition;
  for (const UnitGraph& unit : graph.units) {
    for (const Node& node : unit.forward) {
      if (const auto* attention = node.op.As<CachedAttention>()) {
        const int64_t rows = attention->keys_CGPD.dim(2);
        if (attention->window == 0 || attention->window > rows - graph.cache.longest_chunk + 1)
          end = std::min(end, rows);
      }
      const auto* embedding = node.op.As<EmbeddingForward>();
      if (embedding != nullptr && embedding->begins_B.present()) end = std::min(end, embedding->positions_PC.dim(0));
    }
  }
  return end;
}

}  // namespace shale
