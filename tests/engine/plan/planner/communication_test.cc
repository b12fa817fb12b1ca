// The tables of collectives per unit and step, as assertions on compiled programs.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/model/model.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/summary.h"
#include "gtest/gtest.h"
#include "sharding/shard_layout.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

enum class Shape { kUntied, kTied, kMlp };

Job JobOf(Shape shape) { return shape == Shape::kMlp ? SmallMlpJob() : SmallDecoderJob(shape == Shape::kTied); }

ModelGraph GraphOf(const Job& job) {
  absl::StatusOr<ModelGraph> graph = BuildModel(job.model, GraphOptionsFor(job, GraphMode::kTraining));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

CommunicationSummary Communicate(const ModelGraph& graph, const StepOptions& options) {
  const absl::StatusOr<CompiledStep> step = CompileStep(graph, options, ScratchOnlyOps());
  EXPECT_TRUE(step.ok()) << step.status();
  return SummarizeCommunication(step->program, options.mesh);
}

constexpr int64_t kLayers = 3;
// Returns the number of flat groups: embedding, blocks and head. In a tied model embedding and head are one group.
int64_t Groups(Shape shape) { return kLayers + (shape == Shape::kTied ? 1 : 2); }

// The collectives per step of one block, and of the embedding and head together. Where the table in the design says K,
// the number includes the factor K.
struct Row {
  Strategy strategy;
  Accumulation accumulation;
  bool reshard = true;
  int64_t block_gathers, block_reductions;
  int64_t ends_gathers, ends_reductions;            // Embedding and head, untied.
  int64_t tied_ends_gathers, tied_ends_reductions;  // Embedding and head, in one group.
  int64_t group_all_reduces = 0;                    // Of each group.
};

std::vector<Row> Table(int64_t k) {
  using enum Strategy;
  using enum Accumulation;
  return {
      {kFullShard, kSharded, true, 2 * k, k, k + k, k + k, 2 * k, 2 * k},
      {kFullShard, kNoSync, true, 2 * k, 1, k + k, 1 + 1, 2 * k, 1},
      {kFullShard, kLayered, true, 2, 1, 1 + 1, 1 + 1, 2, 2},
      // These keep parameters gathered after forward. A tied pair is gathered once for both units. Its gradient is
      // reduced for each of the two units, except in NO_SYNC.
      {kFullShard, kSharded, false, k, k, k + k, k + k, k, 2 * k},
      {kFullShard, kNoSync, false, k, 1, k + k, 1 + 1, k, 1},
      {kFullShard, kLayered, false, 1, 1, 1 + 1, 1 + 1, 1, 2},
      // Here the gather follows the update.
      {kZero2, kSharded, true, 1, k, 1 + 1, k + k, 1, 2 * k},
      {kZero2, kLayered, true, 1, 1, 1 + 1, 1 + 1, 1, 2},
      {kZero1, kNoSync, true, 1, 1, 1 + 1, 1 + 1, 1, 1},
      {kZero1, kLayered, true, 1, 1, 1 + 1, 1 + 1, 1, 1},
      {kDdp, kNoSync, true, 0, 0, 0, 0, 0, 0, 1},
      {kDdp, kLayered, true, 0, 0, 0, 0, 0, 0, 1},
  };
}

std::string Label(const Row& row, const StepOptions& o) {
  return absl::StrCat(ToString(row.strategy), " ", ToString(row.accumulation), row.reshard ? "" : ", not resharded",
                      ", K = ", o.micro_batches, ", W = ", o.mesh.ranks(), ", prefetch ", o.prefetch, ", ",
                      ToString(o.activations.preset), ", segments of ", o.activations.segment_blocks);
}

class CollectivesTest : public ::testing::TestWithParam<Shape> {};

TEST_P(CollectivesTest, EqualTheTableForEveryStrategyAndSchedule) {
  const ModelGraph graph = GraphOf(JobOf(GetParam()));
  const bool tied = GetParam() == Shape::kTied;
  for (int64_t k : {1, 2, 5}) {
    for (const Row& row : Table(k)) {
      for (int64_t ranks : {2, 5}) {
        for (int64_t prefetch : {0, 1, 3}) {
          for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
            StepOptions options;
            options.strategy = row.strategy;
            options.accumulation = row.accumulation;
            options.reshard_after_forward = row.reshard;
            options.mesh = {.shard = ranks};
            options.micro_batches = k;
            options.prefetch = prefetch;
            options.activations.preset = preset;
            const CommunicationSummary c = Communicate(graph, options);
            const std::string label = Label(row, options);
            EXPECT_EQ(c.gathers, kLayers * row.block_gathers + (tied ? row.tied_ends_gathers : row.ends_gathers))
                << label;
            // In segments of 2, the first of the three blocks runs forward again and is gathered for this.
            options.activations.segment_blocks = 2;
            const int64_t again = row.strategy != Strategy::kFullShard || !row.reshard ? 0 : row.block_gathers / 2;
            const CommunicationSummary segments = Communicate(graph, options);
            EXPECT_EQ(segments.gathers, c.gathers + again) << Label(row, options);
            EXPECT_EQ(segments.reductions, c.reductions) << Label(row, options);
            EXPECT_EQ(c.reductions,
                      kLayers * row.block_reductions + (tied ? row.tied_ends_reductions : row.ends_reductions))
                << label;
            // Plus two: the count of valid tokens, and {loss sum, squared norm, non-finite}.
            EXPECT_EQ(c.all_reduces, Groups(GetParam()) * row.group_all_reduces + 2) << label;
          }
        }
      }
    }
  }
}

TEST_P(CollectivesTest, OneRankCommunicatesNothing) {
  const ModelGraph graph = GraphOf(JobOf(GetParam()));
  for (const Row& row : Table(3)) {
    StepOptions options;
    options.strategy = row.strategy;
    options.accumulation = row.accumulation;
    options.reshard_after_forward = row.reshard;
    options.micro_batches = 3;
    const CommunicationSummary c = Communicate(graph, options);
    EXPECT_EQ(c.gathers + c.reductions + c.all_reduces, 0) << Label(row, options);
    EXPECT_EQ(c.sent_bytes, 0) << Label(row, options);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CollectivesTest, ::testing::Values(Shape::kUntied, Shape::kTied, Shape::kMlp),
                         [](const auto& info) {
                           return info.param == Shape::kMlp ? "Mlp" : info.param == Shape::kTied ? "Tied" : "Untied";
                         });

TEST(Communication, BytesAreThoseOfPaddedGroupsInTheirDtypes) {
  Job job = SmallDecoderJob(false);
  job.precision.compute = ComputePrecision::kBFloat16;
  const ModelGraph graph = GraphOf(job);
  StepOptions options = StepOptionsFor(job);
  options.accumulation = Accumulation::kNoSync;
  ASSERT_EQ(options.micro_batches, 4);  // 40 sequences over 5 ranks, 2 at a time.
  int64_t gathered = 0, reduced = 0;
  for (const ParameterGroup& group : graph.groups) {
    std::vector<ShardLayout::Entry> entries;
    for (ParameterId id : group.parameters) entries.push_back({graph.parameters[id].name, graph.parameters[id].shape});
    const int64_t elements = ShardLayout::Create(entries, 5)->padded_elements();
    const bool block = group.name.substr(0, 6) == "blocks";
    gathered += 2 * elements * (block ? 2 * 4 : 4);  // bf16; blocks in forward and backward of each micro-batch.
    reduced += 4 * elements;                         // fp32; once.
  }
  const CommunicationSummary c = Communicate(graph, options);
  EXPECT_EQ(c.gathered_bytes, gathered);
  EXPECT_EQ(c.reduced_bytes, reduced);
  EXPECT_EQ(c.all_reduced_bytes, 8 + 3 * 8);  // An i64 count, three f64 totals.
  // In a ring of five, each rank sends four fifths of every vector, and twice as much for an all-reduce.
  EXPECT_EQ(c.sent_bytes, 4 * (gathered + reduced + 2 * (8 + 3 * 8)) / 5);
}

// Collectives along `shard` are those of a job without replicas, and one gather of the totals. All-reduces are one of
// each group along `replicate`, and those of two numbers: the count of valid tokens and the loss.
TEST(Communication, ReplicasSumTheirShardsOnceAStep) {
  const ModelGraph graph = GraphOf(JobOf(Shape::kUntied));
  for (const Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    StepOptions options;
    options.accumulation = accumulation;
    options.micro_batches = 3;
    options.mesh = {.shard = 2};
    const CommunicationSummary one = Communicate(graph, options);
    options.mesh = {.replicate = 4, .shard = 2};
    const CommunicationSummary four = Communicate(graph, options);
    EXPECT_EQ(four.gathers, one.gathers + 1);
    EXPECT_EQ(four.gathered_bytes, one.gathered_bytes + 2 * 24);
    EXPECT_EQ(four.reductions, one.reductions);
    EXPECT_EQ(four.reduced_bytes, one.reduced_bytes);
    EXPECT_EQ(four.all_reduces, Groups(Shape::kUntied) + 2);
    int64_t shards = 0;  // Elements of the gradients of a rank.
    for (const ParameterGroup& group : graph.groups) {
      std::vector<ShardLayout::Entry> entries;
      for (ParameterId id : group.parameters) {
        entries.push_back({graph.parameters[id].name, graph.parameters[id].shape});
      }
      shards += ShardLayout::Create(entries, 2)->shard_elements();
    }
    EXPECT_EQ(four.all_reduced_bytes, 4 * shards + 8 + 8);
    // In a ring of N ranks, a rank sends (N - 1) / N of the bytes, and twice that for an all-reduce. A row has 2 ranks,
    // a column 4, and the mesh 8.
    EXPECT_EQ(four.sent_bytes,
              (four.gathered_bytes + four.reduced_bytes) / 2 + 2 * 4 * shards * 3 / 4 + 2 * (8 + 8) * 7 / 8);
    EXPECT_EQ(four.sent_between_groups_bytes, 2 * 4 * shards * 3 / 4 + 2 * (8 + 8) * 7 / 8);
    EXPECT_EQ(one.sent_between_groups_bytes, 0);
  }
}

TEST(Communication, RefusedCombinationsNameTheRightOne) {
  const auto message = [](Strategy strategy, Accumulation accumulation) {
    return std::string(CheckCombination(strategy, accumulation).message());
  };
  EXPECT_NE(message(Strategy::kZero2, Accumulation::kNoSync).find("ZERO1"), std::string::npos);
  EXPECT_NE(message(Strategy::kZero1, Accumulation::kSharded).find("ZERO2"), std::string::npos);
  EXPECT_NE(message(Strategy::kDdp, Accumulation::kSharded).find("ZERO2"), std::string::npos);
}

}  // namespace
}  // namespace shale
