#include "tests/engine/traffic_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace shale::testing {
namespace {

const TrafficRow kRows[] = {
    {Strategy::kFullShard, Accumulation::kSharded, true, false,
     [](int64_t K) {
       return TrafficCounts{2 * K, K};
     },
     [](int64_t K) {
       return TrafficCounts{K, K};
     }},
    {Strategy::kFullShard, Accumulation::kNoSync, true, false,
     [](int64_t K) {
       return TrafficCounts{2 * K, 1};
     },
     [](int64_t K) {
       return TrafficCounts{K, 1};
     }},
    {Strategy::kFullShard, Accumulation::kLayered, true, false,
     [](int64_t) {
       return TrafficCounts{2, 1};
     },
     [](int64_t) {
       return TrafficCounts{1, 1};
     }},
    {Strategy::kFullShard, Accumulation::kSharded, false, false,
     [](int64_t K) {
       return TrafficCounts{K, K};
     },
     [](int64_t K) {
       return TrafficCounts{K, K};
     }},
    {Strategy::kFullShard, Accumulation::kNoSync, false, false,
     [](int64_t K) {
       return TrafficCounts{K, 1};
     },
     [](int64_t K) {
       return TrafficCounts{K, 1};
     }},
    {Strategy::kFullShard, Accumulation::kLayered, false, false,
     [](int64_t) {
       return TrafficCounts{1, 1};
     },
     [](int64_t) {
       return TrafficCounts{1, 1};
     }},
    {Strategy::kFullShard, Accumulation::kSharded, true, true,
     [](int64_t K) {
       return TrafficCounts{2 * K, K};
     },
     [](int64_t K) {
       return TrafficCounts{2 * K, 2 * K};
     }},
    {Strategy::kFullShard, Accumulation::kNoSync, true, true,
     [](int64_t K) {
       return TrafficCounts{2 * K, 1};
     },
     [](int64_t K) {
       return TrafficCounts{2 * K, 1};
     }},
    {Strategy::kFullShard, Accumulation::kLayered, true, true,
     [](int64_t) {
       return TrafficCounts{2, 1};
     },
     [](int64_t) {
       return TrafficCounts{2, 2};
     }},
    {Strategy::kZero2, Accumulation::kSharded, true, false,
     [](int64_t K) {
       return TrafficCounts{1, K};
     },
     [](int64_t K) {
       return TrafficCounts{1, K};
     }},
    {Strategy::kZero2, Accumulation::kLayered, true, false,
     [](int64_t) {
       return TrafficCounts{1, 1};
     },
     [](int64_t) {
       return TrafficCounts{1, 1};
     }},
    {Strategy::kZero1, Accumulation::kNoSync, true, false,
     [](int64_t) {
       return TrafficCounts{1, 1};
     },
     [](int64_t) {
       return TrafficCounts{1, 1};
     }},
    {Strategy::kZero1, Accumulation::kLayered, true, false,
     [](int64_t) {
       return TrafficCounts{1, 1};
     },
     [](int64_t) {
       return TrafficCounts{1, 1};
     }},
    {Strategy::kDdp, Accumulation::kNoSync, true, false,
     [](int64_t) {
       return TrafficCounts{0, 1};
     },
     [](int64_t) {
       return TrafficCounts{0, 1};
     }},
    {Strategy::kDdp, Accumulation::kLayered, true, false,
     [](int64_t) {
       return TrafficCounts{0, 1};
     },
     [](int64_t) {
       return TrafficCounts{0, 1};
     }},
};

// Returns how many gathers a block needs to run forward again in a segment, besides those of the table.
int64_t GathersAgain(const TrafficRow& row, int64_t K) {
  if (row.strategy != Strategy::kFullShard || !row.reshard) return 0;
  return row.accumulation == Accumulation::kLayered ? 1 : K;
}

// Returns the index of the block that a parameter belongs to, or -1.
int64_t BlockOf(const std::string& name) {
  constexpr absl::string_view kPrefix = "blocks.";
  return absl::StartsWith(name, kPrefix) ? std::atoll(name.c_str() + kPrefix.size()) : -1;
}

}  // namespace

absl::Span<const TrafficRow> TrafficTable() { return kRows; }

TrafficRecorder::TrafficRecorder(RunOptions& options) : traces_(options.step.mesh.ranks()) {
  options.wrap = [this](std::unique_ptr<Communicator> inner, int rank, StreamId stream) {
    return std::make_unique<TracingCommunicator>(std::move(inner), &traces_[rank], std::string(ToString(stream)));
  };
  // Some backends run each collective once before the first step.
  options.before_step = [this](int step, int rank, Executor&) {
    if (step == 0) traces_[rank].Clear();
  };
}

void TrafficRecorder::ExpectRow(const TrafficRow& row, const RunOptions& options, const RunResult& result,
                                const std::string& what) const {
  const Mesh& mesh = options.step.mesh;
  const int64_t K = result.step.program.micro_batches, segment = options.step.activations.segment_blocks;
  const bool hybrid = mesh.replicate > 1, replicated = row.strategy == Strategy::kDdp;
  int64_t blocks = 0;
  for (const GroupState& g : result.step.state.groups) {
    blocks = std::max(blocks, BlockOf(g.layout().parameters()[0].name) + 1);
  }
  // By elements of the full vector. Blocks have equal sizes; the embedding and the head have other sizes.
  std::map<int64_t, TrafficCounts> expected;
  bool any_float8 = false;
  for (const GroupState& g : result.step.state.groups) {
    const int64_t block = BlockOf(g.layout().parameters()[0].name);
    TrafficCounts counts = block >= 0 ? row.block(K) : row.end(K);
    // The last block of a segment does not run forward again.
    const bool again = block >= 0 && block % segment != segment - 1 && block != blocks - 1;
    if (again) counts.gathers += GathersAgain(row, K);
    TrafficCounts& sum = expected[g.layout().padded_elements()];
    const bool float8 = g.float8 && row.strategy == Strategy::kFullShard;
    (float8 ? sum.float8_gathers : sum.gathers) += counts.gathers;
    any_float8 |= float8;
    sum.reductions += counts.reductions;
    if (hybrid) ++expected[g.layout().shard_elements()].sums_over_replicas;
  }
  if (mesh.ranks() == 1) expected.clear();
  for (const CollectiveTrace& trace : traces_) {
    std::map<int64_t, TrafficCounts> seen;
    int64_t scalars = 0, maxima = 0;
    for (const CollectiveRecord& record : trace.records()) {
      const int64_t elements = record.bytes() / SizeOf(record.dtype);
      if (record.dtype == DType::kFloat8E4M3) {
        ++seen[elements].float8_gathers;
        continue;
      }
      if (any_float8 && record.kind == CollectiveKind::kAllGather && record.dtype == DType::kFloat32) {
        ++maxima;
        continue;
      }
      if (record.dtype != DType::kFloat32 && record.dtype != DType::kBFloat16) {
        EXPECT_LE(record.bytes(), 24 * mesh.shard) << what;
        ++scalars;
      } else if (record.kind == CollectiveKind::kAllGather) {
        EXPECT_EQ(record.dtype, options.dtype) << what;
        ++seen[elements].gathers;
        continue;
      } else if (record.kind == CollectiveKind::kAllToAll) {
        EXPECT_EQ(record.dtype, options.step.reduce) << what;
        ++seen[elements].reductions;
        continue;
      } else if (record.kind == CollectiveKind::kReduceScatterSum || replicated) {
        EXPECT_EQ(options.step.reduce, DType::kFloat32) << what;
        ++seen[elements].reductions;
      } else {
        ++seen[elements].sums_over_replicas;
      }
      EXPECT_NE(record.dtype, DType::kBFloat16) << what << ": sums of gradients are in fp32";
    }
    EXPECT_EQ(trace.records(), traces_[0].records()) << what;
    EXPECT_EQ(seen, expected) << what;
    EXPECT_EQ(maxima, any_float8 && mesh.ranks() > 1 ? 1 : 0) << what;
    // These are the count of valid tokens and the totals. With replicas the loss is all-reduced separately.
    EXPECT_EQ(scalars, mesh.ranks() == 1 ? 0 : hybrid ? 3 : 2) << what;
  }
}

}  // namespace shale::testing
