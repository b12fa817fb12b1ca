// All laws of steps on the cross product of what a step can be divided into: strategies and accumulations, activation
// checkpointing and segments, ranks and meshes, micro-batches, precisions, and packed documents. Each combination of a
// strategy, an accumulation, a preset and a length of segments runs on every mesh and with every precision that it can
// have, and with every number of micro-batches, but not with all combinations of these three.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/options_enums.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/traffic_table.h"

namespace shale::testing {
namespace {

constexpr int64_t kLayers = 4;

// Returns a model of a few hundred parameters, whose sizes are multiples of nothing, or with `float8` of 16.
DecoderConfig TinyDecoder(bool float8) {
  DecoderConfig c;
  c.vocabulary = 13;
  c.width = 6;
  c.layers = kLayers;
  c.heads = 3;
  c.kv_heads = 1;
  c.head_width = 2;
  c.hidden = 10;
  c.max_positions = 8;
  c.init_std = 0.3;
  if (!float8) return c;
  c.width = c.hidden = c.max_positions = kFloat8Length;
  c.heads = 1;
  c.head_width = 16;
  return c;
}

struct Precision {
  std::string name;
  DType dtype, gradients;
  DType reduce = DType::kFloat32;
  std::optional<DType> float8_gradients;  // As RunOptions::float8_gradients.
  bool float8_blockwise = false;
};

// Two orders of summing differ by some roundings of fp32 (see tests/engine/laws_test.cc). With bf16 activations or
// sums, a value may round the other way: at most K + 1 bf16 steps of 2^-7 in the tests below.
double Tolerance(const Precision& precision) {
  if (precision.gradients == DType::kBFloat16 || precision.reduce == DType::kBFloat16) return 4 * 0x1p-7;
  return precision.dtype == DType::kBFloat16 ? 1e-2 : 2e-5;
}

struct MeshAndPrecision {
  Mesh mesh;
  Precision precision;
  int64_t number;  // That of the mesh and that of the precision, added up.
};

std::atomic<int64_t> combinations = 0;

// Prints the number of combinations after all tests.
class Count : public ::testing::Environment {
 public:
  void TearDown() override {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin_;
    std::cout << combinations << " combinations in " << static_cast<int64_t>(seconds.count()) << " s\n";
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};
const ::testing::Environment* const kCount = ::testing::AddGlobalTestEnvironment(new Count);

class CrossProduct : public ::testing::TestWithParam<MeshAndPrecision> {
 protected:
  // Runs a combination, and expects what every combination promises by itself.
  static std::optional<RunResult> Run(const RunOptions& given, const Tokens& tokens, const TrafficRow& row,
                                      const std::string& what) {
    ++combinations;
    RunOptions options = given;
    TrafficRecorder traffic(options);
    absl::StatusOr<RunResult> result = RunJob(options, tokens);
    EXPECT_TRUE(result.ok()) << what << ": " << result.status();
    if (!result.ok()) return std::nullopt;
    EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes) << what;
    traffic.ExpectRow(row, options, *result, what);
    return *std::move(result);
  }

  static void ExpectEqualBits(const RunResult& a, const RunResult& b, const std::string& what) {
    EXPECT_EQ(a.losses, b.losses) << what;
    EXPECT_EQ(a.norms, b.norms) << what;
    EXPECT_TRUE(a.gradients == b.gradients) << what << ": gradients differ";
    EXPECT_TRUE(a.weights == b.weights) << what << ": weights differ";
  }
};

// Returns whether a combination sums gradients over the micro-batches of a rank before it sums them over the ranks. All
// that do, sum in one order, and so do all that do not. With one micro-batch, or one rank, there is only one order.
bool SumsMicroBatchesFirst(Accumulation accumulation, int64_t micro_batches, int64_t ranks) {
  return accumulation != Accumulation::kSharded || micro_batches == 1 || ranks == 1;
}

TEST_P(CrossProduct, EveryCombinationObeysEveryLaw) {
  const auto& [mesh, precision, number] = GetParam();
  for (int64_t K = 1; K <= 3; ++K) {
    const DecoderConfig model = TinyDecoder(precision.float8_gradients.has_value());
    const int64_t length = precision.float8_gradients ? kFloat8Length : 5;
    const Tokens tokens = RandomTokens(K * mesh.ranks(), length, model.vocabulary, 41);
    RunOptions options;
    options.model = model;
    options.float8_gradients = precision.float8_gradients;
    options.float8_blockwise = precision.float8_blockwise;
    options.dtype = precision.dtype;
    options.position_ids = K == 2;  // Packed documents obey the same laws.
    const absl::StatusOr<RunResult> one = RunJob(options, tokens);
    ASSERT_TRUE(one.ok()) << one.status();
    options.step.mesh = mesh;
    options.step.gradient_shards = precision.gradients;
    options.step.reduce = precision.reduce;
    // The first result of each order of summing, with which the others agree to the bit. Rounded sums have an order for
    // each accumulation, since LAYERED rounds only once.
    std::map<std::pair<bool, Accumulation>, RunResult> first;
    int64_t number_of_row = 0;
    for (const TrafficRow& row : TrafficTable()) {
      ++number_of_row;
      if (!row.reshard || row.tied || (row.strategy == Strategy::kDdp && mesh.replicate > 1)) continue;
      if (precision.gradients != DType::kFloat32 && !CheckGradientShards(row.strategy, row.accumulation, mesh).ok()) {
        continue;
      }
      if (precision.reduce != DType::kFloat32 && !CheckReduce(row.strategy, mesh).ok()) continue;
      options.step.strategy = row.strategy;
      options.step.accumulation = row.accumulation;
      for (int preset = 0; preset <= static_cast<int>(CheckpointingPreset::kBlock); ++preset) {
        for (const int64_t segment_blocks : {int64_t{1}, int64_t{2}, int64_t{3}, kLayers}) {
          // As in a Latin square, one of the four lengths runs here. The next mesh, precision or K runs another one.
          if ((number + number_of_row + preset + segment_blocks + K) % 4 != 0) continue;
          options.step.activations.preset = static_cast<CheckpointingPreset>(preset);
          options.step.activations.segment_blocks = segment_blocks;
          const std::string what =
              absl::StrCat(ToString(row.strategy), " ", ToString(row.accumulation), " R=", mesh.replicate,
                           " S=", mesh.shard, " K=", K, " ", precision.name, " ",
                           ToString(options.step.activations.preset), " in segments of ", segment_blocks);
          std::optional<RunResult> result = Run(options, tokens, row, what);
          if (!result) continue;
          const bool order = SumsMicroBatchesFirst(row.accumulation, K, mesh.ranks());
          const bool rounds = precision.gradients != DType::kFloat32 || precision.reduce != DType::kFloat32;
          const Accumulation rounded = rounds ? row.accumulation : Accumulation::kAuto;
          const auto [same, is_first] = first.try_emplace({order, rounded}, *result);
          if (!is_first) {
            ExpectEqualBits(*result, same->second, what);
            continue;
          }
          const double tolerance = Tolerance(precision);
          EXPECT_NEAR(result->losses[0], one->losses[0], tolerance * one->losses[0]) << what;
          EXPECT_EQ(result->global_tokens, one->global_tokens) << what;
          std::string worst;
          EXPECT_LE(LargestDistance(result->gradients, one->gradients, &worst), tolerance) << what << ": " << worst;
        }
      }
    }
  }
}

std::vector<MeshAndPrecision> MeshesAndPrecisions() {
  std::vector<MeshAndPrecision> all;
  int64_t number_of_mesh = 0;
  for (const Mesh& mesh : std::vector<Mesh>{{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 3}, {3, 2}}) {
    ++number_of_mesh;
    int64_t number_of_precision = 0;
    for (const Precision& precision :
         {Precision{"Fp32", DType::kFloat32, DType::kFloat32},
          {"Bf16", DType::kBFloat16, DType::kFloat32},
          {"Bf16Gradients", DType::kBFloat16, DType::kBFloat16},
          {"Bf16Reduce", DType::kBFloat16, DType::kFloat32, DType::kBFloat16},
          {"Fp8", DType::kBFloat16, DType::kFloat32, DType::kFloat32, DType::kFloat8E5M2},
          {"Fp8Blockwise", DType::kBFloat16, DType::kFloat32, DType::kFloat32, DType::kFloat8E4M3, true}}) {
      ++number_of_precision;
      // The sizes of fp8 take their time, and what it computes depends on no mesh.
      if (precision.float8_gradients && mesh.shard == 3) continue;
      all.push_back({mesh, precision, number_of_mesh + number_of_precision});
    }
  }
  return all;
}

std::string NameOf(const ::testing::TestParamInfo<MeshAndPrecision>& info) {
  const auto& [mesh, precision, number] = info.param;
  return absl::StrCat(precision.name, "On", mesh.replicate, "x", mesh.shard);
}

INSTANTIATE_TEST_SUITE_P(Steps, CrossProduct, ::testing::ValuesIn(MeshesAndPrecisions()), NameOf);

}  // namespace
}  // namespace shale::testing
