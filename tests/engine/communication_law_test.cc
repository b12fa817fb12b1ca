// Every rank issues exactly the collectives that the accumulation promises: in number, order and bytes.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/traffic_table.h"

namespace shale::testing {
namespace {

std::string Describe(const TrafficRow& row, int64_t K, const Mesh& mesh, int64_t segment_blocks) {
  return absl::StrCat(ToString(row.strategy), " ", ToString(row.accumulation), row.reshard ? "" : " kept gathered",
                      row.tied ? " tied" : "", " K=", K, " R=", mesh.replicate, " S=", mesh.shard, " segments of ",
                      segment_blocks);
}

void ExpectRow(const TrafficRow& row, RunOptions options, DecoderConfig model, int64_t length, int64_t sequences,
               const std::string& what) {
  model.tied_head = row.tied;
  options.model = model;
  options.step.strategy = row.strategy;
  options.step.accumulation = row.accumulation;
  options.step.reshard_after_forward = row.reshard;
  TrafficRecorder traffic(options);
  const absl::StatusOr<RunResult> result = RunJob(options, RandomTokens(sequences, length, model.vocabulary, 1));
  ASSERT_TRUE(result.ok()) << what << ": " << result.status();
  traffic.ExpectRow(row, options, *result, what);
}

TEST(CommunicationLaws, EveryRankIssuesTheCollectivesOfTheTable) {
  for (const TrafficRow& row : TrafficTable()) {
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
      if (mesh.replicate > 1 && row.strategy == Strategy::kDdp) continue;
      const std::string what = Describe(row, K, mesh, segment_blocks);
      RunOptions options;
      options.step.mesh = mesh;
      options.step.activations.segment_blocks = segment_blocks;
      ExpectRow(row, options, SmallDecoder(), /*length=*/7, K * mesh.ranks(), what);
      if (K != 2) continue;
      options.dtype = DType::kBFloat16;
      options.float8_gradients = DType::kFloat8E5M2;
      ExpectRow(row, options, Float8Decoder(), kFloat8Length, K * mesh.ranks(), what + " in fp8");
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
