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

// Returns whether the weights of a group are gathered in fp8.
bool GathersFloat8(const TrafficRow& row, const GroupState& group) {
  return group.float8 && row.strategy == Strategy::kFullShard;
}

using CountsBySize = std::map<int64_t, TrafficCounts>;  // By elements of the collective's full vector.

// Returns what a rank that is not alone issues in a step. Blocks have equal sizes; the embedding and the head have
// other sizes.
CountsBySize ExpectedCounts(const TrafficRow& row, const RunOptions& options, const RunResult& result) {
  const int64_t K = result.step.program.micro_batches, segment = options.step.activations.segment_blocks;
  int64_t blocks = 0;
  for (const GroupState& g : result.step.state.groups) {
    blocks = std::max(blocks, BlockOf(g.layout().parameters()[0].name) + 1);
  }
  CountsBySize expected;
  for (const GroupState& g : result.step.state.groups) {
    const int64_t block = BlockOf(g.layout().parameters()[0].name);
    TrafficCounts counts = block >= 0 ? row.block(K) : row.end(K);
    // The last block of a segment does not run forward again.
    const bool again = block >= 0 && block % segment != segment - 1 && block != blocks - 1;
    if (again) counts.gathers += GathersAgain(row, K);
    TrafficCounts& sum = expected[g.layout().padded_elements()];
    (GathersFloat8(row, g) ? sum.float8_gathers : sum.gathers) += counts.gathers;
    sum.reductions += counts.reductions;
    if (options.step.mesh.replicate > 1) ++expected[g.layout().shard_elements()].sums_over_replicas;
  }
  return expected;
}

// What one rank has issued in a step.
struct SeenCollectives {
  CountsBySize counts;
  int64_t scalars = 0;  // Counts of tokens and totals.
  int64_t maxima = 0;   // Gathers of the maxima of weights in fp8.
};

// Adds a collective to `seen`, and expects that it has the dtype that its kind has.
void Count(const CollectiveRecord& record, const TrafficRow& row, const RunOptions& options, bool any_float8,
           SeenCollectives& seen) {
  const int64_t elements = record.bytes() / SizeOf(record.dtype);
  if (record.dtype == DType::kFloat8E4M3) {
    ++seen.counts[elements].float8_gathers;
  } else if (any_float8 && record.kind == CollectiveKind::kAllGather && record.dtype == DType::kFloat32) {
    ++seen.maxima;
  } else if (record.dtype != DType::kFloat32 && record.dtype != DType::kBFloat16) {
    EXPECT_LE(record.bytes(), 24 * options.step.mesh.shard);
    ++seen.scalars;
  } else if (record.kind == CollectiveKind::kAllGather) {
    EXPECT_EQ(record.dtype, options.dtype);
    ++seen.counts[elements].gathers;
  } else if (record.kind == CollectiveKind::kAllToAll) {
    EXPECT_EQ(record.dtype, options.step.reduce);
    ++seen.counts[elements].reductions;
  } else {
    EXPECT_EQ(record.dtype, DType::kFloat32) << "sums of gradients are in fp32";
    if (record.kind == CollectiveKind::kReduceScatterSum || row.strategy == Strategy::kDdp) {
      EXPECT_EQ(options.step.reduce, DType::kFloat32);
      ++seen.counts[elements].reductions;
    } else {
      ++seen.counts[elements].sums_over_replicas;
    }
  }
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
  SCOPED_TRACE(what);
  const std::vector<GroupState>& groups = result.step.state.groups;
  const bool any_float8 =
      std::any_of(groups.begin(), groups.end(), [&](const GroupState& g) { return GathersFloat8(row, g); });
  const bool alone = options.step.mesh.ranks() == 1, hybrid = options.step.mesh.replicate > 1;
  const CountsBySize expected = alone ? CountsBySize() : ExpectedCounts(row, options, result);
  for (const CollectiveTrace& trace : traces_) {
    SeenCollectives seen;
    for (const CollectiveRecord& record : trace.records()) Count(record, row, options, any_float8, seen);
    EXPECT_EQ(trace.records(), traces_[0].records());
    EXPECT_EQ(seen.counts, expected);
    EXPECT_EQ(seen.maxima, any_float8 && !alone ? 1 : 0);
    // These are the count of valid tokens and the totals. With replicas the loss is all-reduced separately.
    EXPECT_EQ(seen.scalars, alone ? 0 : hybrid ? 3 : 2);
  }
}

}  // namespace shale::testing
