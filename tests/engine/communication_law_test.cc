// Every rank issues exactly the collectives that the accumulation promises: in number, order and bytes.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "sharding/comm/tracing.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {
namespace {

struct Counts {
  int64_t gathers = 0, reductions = 0;
  int64_t sums_over_replicas = 0;  // All-reduces of a rank's shard of a gradient.
  bool operator==(const Counts&) const = default;
};

// The collectives per unit and step that the design promises, for K micro-batches.
struct Row {
  Strategy strategy;
  Accumulation accumulation;
  bool reshard;
  bool tied;
  // `block` counts those of a block; `end` those of an untied embedding or head, or of a tied embedding with its head.
  Counts (*block)(int64_t K);
  Counts (*end)(int64_t K);
};

const Row kRows[] = {
    {Strategy::kFullShard, Accumulation::kSharded, true, false,
     [](int64_t K) {
       return Counts{2 * K, K};
     },
     [](int64_t K) {
       return Counts{K, K};
     }},
    {Strategy::kFullShard, Accumulation::kNoSync, true, false,
     [](int64_t K) {
       return Counts{2 * K, 1};
     },
     [](int64_t K) {
       return Counts{K, 1};
     }},
    {Strategy::kFullShard, Accumulation::kLayered, true, false,
     [](int64_t) {
       return Counts{2, 1};
     },
     [](int64_t) {
       return Counts{1, 1};
     }},
    {Strategy::kFullShard, Accumulation::kSharded, false, false,
     [](int64_t K) {
       return Counts{K, K};
     },
     [](int64_t K) {
       return Counts{K, K};
     }},
    {Strategy::kFullShard, Accumulation::kNoSync, false, false,
     [](int64_t K) {
       return Counts{K, 1};
     },
     [](int64_t K) {
       return Counts{K, 1};
     }},
    {Strategy::kFullShard, Accumulation::kLayered, false, false,
     [](int64_t) {
       return Counts{1, 1};
     },
     [](int64_t) {
       return Counts{1, 1};
     }},
    {Strategy::kFullShard, Accumulation::kSharded, true, true,
     [](int64_t K) {
       return Counts{2 * K, K};
     },
     [](int64_t K) {
       return Counts{2 * K, 2 * K};
     }},
    {Strategy::kFullShard, Accumulation::kNoSync, true, true,
     [](int64_t K) {
       return Counts{2 * K, 1};
     },
     [](int64_t K) {
       return Counts{2 * K, 1};
     }},
    {Strategy::kFullShard, Accumulation::kLayered, true, true,
     [](int64_t) {
       return Counts{2, 1};
     },
     [](int64_t) {
       return Counts{2, 2};
     }},
    {Strategy::kZero2, Accumulation::kSharded, true, false,
     [](int64_t K) {
       return Counts{1, K};
     },
     [](int64_t K) {
       return Counts{1, K};
     }},
    {Strategy::kZero2, Accumulation::kLayered, true, false,
     [](int64_t) {
       return Counts{1, 1};
     },
     [](int64_t) {
       return Counts{1, 1};
     }},
    {Strategy::kZero1, Accumulation::kNoSync, true, false,
     [](int64_t) {
       return Counts{1, 1};
     },
     [](int64_t) {
       return Counts{1, 1};
     }},
    {Strategy::kZero1, Accumulation::kLayered, true, false,
     [](int64_t) {
       return Counts{1, 1};
     },
     [](int64_t) {
       return Counts{1, 1};
     }},
    {Strategy::kDdp, Accumulation::kNoSync, true, false,
     [](int64_t) {
       return Counts{0, 1};
     },
     [](int64_t) {
       return Counts{0, 1};
     }},
    {Strategy::kDdp, Accumulation::kLayered, true, false,
     [](int64_t) {
       return Counts{0, 1};
     },
     [](int64_t) {
       return Counts{0, 1};
     }},
};

// Returns how many gathers a block needs to run forward again in a segment, besides those of the table.
int64_t GathersAgain(const Row& row, int64_t K) {
  if (row.strategy != Strategy::kFullShard || !row.reshard) return 0;
  return row.accumulation == Accumulation::kLayered ? 1 : K;
}

std::string Describe(const Row& row, int64_t K, const Mesh& mesh, int64_t segment_blocks) {
  return absl::StrCat(ToString(row.strategy), " ", ToString(row.accumulation), row.reshard ? "" : " kept gathered",
                      row.tied ? " tied" : "", " K=", K, " R=", mesh.replicate, " S=", mesh.shard, " segments of ",
                      segment_blocks);
}

// With replicas, the collectives of the table run along `shard`. One all-reduce of each group follows them, whatever K.
TEST(CommunicationLaws, EveryRankIssuesTheCollectivesOfTheTable) {
  for (const Row& row : kRows) {
    struct Step {
      int64_t micro_batches;
      Mesh mesh;
      int64_t segment_blocks = 1;
    };
    for (const auto& [K, mesh, segment_blocks] : {Step{1, Mesh{1, 3}},
                                                  {2, Mesh{1, 3}},
                                                  {5, Mesh{1, 3}},
                                                  {2, Mesh{1, 3}, 2},
                                                  {1, Mesh{3, 2}},
                                                  {3, Mesh{3, 2}},
                                                  {3, Mesh{2, 3}},
                                                  {2, Mesh{2, 2}, 2}}) {
      const bool hybrid = mesh.replicate > 1;
      if (hybrid && row.strategy == Strategy::kDdp) continue;
      const int ranks = static_cast<int>(mesh.ranks());
      const std::string what = Describe(row, K, mesh, segment_blocks);
      DecoderConfig model = SmallDecoder();
      model.tied_head = row.tied;
      RunOptions options;
      options.model = model;
      options.step.strategy = row.strategy;
      options.step.accumulation = row.accumulation;
      options.step.reshard_after_forward = row.reshard;
      options.step.mesh = mesh;
      options.step.activations.segment_blocks = segment_blocks;
      std::vector<CollectiveTrace> traces(ranks);
      options.wrap = [&](std::unique_ptr<Communicator> inner, int rank, StreamId stream) {
        return std::make_unique<TracingCommunicator>(std::move(inner), &traces[rank], std::string(ToString(stream)));
      };
      absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(K * ranks, 7, model.vocabulary, 1));
      ASSERT_TRUE(result.ok()) << what << ": " << result.status();

      // By bytes of the full vector. Blocks have equal sizes; the embedding and the head have other sizes.
      std::map<int64_t, Counts> expected;
      const bool replicated = row.strategy == Strategy::kDdp;
      for (const GroupState& g : result->step.state.groups) {
        const std::string& name = g.layout().parameters()[0].name;
        Counts counts = name.rfind("blocks.", 0) == 0 ? row.block(K) : row.end(K);
        // The segments are {0, 1} and {2}. The last block of a segment does not run forward again.
        if (segment_blocks == 2 && name.rfind("blocks.0.", 0) == 0) counts.gathers += GathersAgain(row, K);
        Counts& sum = expected[g.layout().padded_elements() * 4];
        sum.gathers += counts.gathers;
        sum.reductions += counts.reductions;
        if (hybrid) ++expected[g.layout().shard_elements() * 4].sums_over_replicas;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        std::map<int64_t, Counts> seen;
        int64_t scalars = 0;
        for (const CollectiveRecord& record : traces[rank].records()) {
          if (record.dtype != DType::kFloat32) {
            EXPECT_LE(record.bytes(), 24 * mesh.shard) << what;
            ++scalars;
          } else if (record.kind == CollectiveKind::kAllGather) {
            ++seen[record.bytes()].gathers;
          } else if (record.kind == CollectiveKind::kReduceScatterSum || replicated) {
            ++seen[record.bytes()].reductions;
          } else {
            ++seen[record.bytes()].sums_over_replicas;
          }
        }
        EXPECT_EQ(traces[rank].records(), traces[0].records()) << what;
        EXPECT_EQ(seen, expected) << what << " rank " << rank;
        // These are the count of valid tokens and the totals. With replicas the loss is all-reduced separately.
        EXPECT_EQ(scalars, hybrid ? 3 : 2) << what;
      }
    }
  }
}

TEST(CommunicationLaws, OneShardIsReducedOnceAndNeverGathered) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    RunOptions options;
    options.step.accumulation = accumulation;
    options.step.mesh = {.replicate = 3, .shard = 1};
    absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(9, 7, SmallDecoder().vocabulary, 1));
    ASSERT_TRUE(result.ok()) << result.status();
    size_t gradients = 0;
    for (const Instruction& instruction : result->step.program.instructions) {
      const auto* collective = std::get_if<Collective>(&instruction.action);
      if (collective == nullptr) continue;
      EXPECT_EQ(collective->kind, CollectiveKind::kAllReduceSum);
      gradients += collective->full.dtype == DType::kFloat32;
    }
    EXPECT_EQ(gradients, result->step.state.groups.size()) << ToString(accumulation);
  }
}

TEST(CommunicationLaws, OneRankCommunicatesNothing) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    RunOptions options;
    options.step.accumulation = accumulation;
    absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(3, 7, SmallDecoder().vocabulary, 1));
    ASSERT_TRUE(result.ok()) << result.status();
    for (const Instruction& instruction : result->step.program.instructions) {
      EXPECT_FALSE(std::holds_alternative<Collective>(instruction.action));
    }
  }
}

}  // namespace
}  // namespace shale::testing
