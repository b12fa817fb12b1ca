// The collectives that a step issues: how many of each kind, for every strategy and accumulation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tests/engine/job_harness.h"
#include "tests/sharding/comm/tracing.h"

namespace shale::testing {

struct TrafficCounts {
  int64_t gathers = 0, reductions = 0;
  int64_t float8_gathers = 0;      // Of weights that travel in fp8 (GatherFloat8); not among `gathers`.
  int64_t sums_over_replicas = 0;  // All-reduces of a rank's shard of a gradient.
  bool operator==(const TrafficCounts&) const = default;
};

// The collectives per unit and step that the design promises, for K micro-batches.
struct TrafficRow {
  Strategy strategy;
  Accumulation accumulation;
  bool reshard;  // StepOptions::reshard_after_forward
  bool tied;     // Whether the head shares the embedding.
  // `block` counts those of a block; `end` those of an untied embedding or head, or of a tied embedding with its head.
  TrafficCounts (*block)(int64_t K);
  TrafficCounts (*end)(int64_t K);
};

// Returns all rows. The span is valid forever.
absl::Span<const TrafficRow> TrafficTable();

// Records the collectives of all ranks of one run, and compares them with the table.
class TrafficRecorder {
 public:
  // Sets options.wrap. The recorder must outlive the run.
  explicit TrafficRecorder(RunOptions& options);
  // Expects that every rank has issued the collectives of `row`. With replicas, those of the table run along `shard`,
  // and one all-reduce of each group follows them, whatever K. Matmuls in fp8 change only how FULL_SHARD gathers: it
  // gathers weights that multiply in fp8 as often in that form, and once a step their maxima. With one rank, expects no
  // collective. `options` and `result` are those of the run, of a decoder whose checkpointing applies to all blocks;
  // `what` describes it.
  void ExpectRow(const TrafficRow& row, const RunOptions& options, const RunResult& result,
                 const std::string& what) const;

 private:
  std::vector<CollectiveTrace> traces_;  // By rank.
};

}  // namespace shale::testing
