// The laws of filling in weights: bits depend neither on the memory through which they go, nor on threads, nor on
// ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/model/model.h"
#include "engine/files/checkpoint/shard_writer.h"
#include "engine/run/state/filling.h"
#include "kernels/integers.h"
#include "kernels/nf4.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

// Has matrices of more than one group of 4-bit weights, which several rounds of the least staging memory fill.
DecoderConfig DecoderOfManyRounds() {
  DecoderConfig model = SmallDecoder();
  model.layers = 2;
  model.width = 120;
  model.head_width = 30;
  model.hidden = 141;
  return model;
}

struct FillCase {
  const char* name;
  DType dtype;
  MasterWeights master;
  Storage stored = Storage::kAsUsed;
};
// On CUDA without a GPU a run takes long, because libraries are warmed up before it.
std::vector<FillCase> FillCases() {
  if (TestsTheCudaBackend()) {
    return {{"bf16 with low bits", DType::kBFloat16, MasterWeights::kSplit},
            {"frozen in 4 bits", DType::kBFloat16, MasterWeights::kSplit, Storage::kNf4}};
  }
  return {{"fp32", DType::kFloat32, MasterWeights::kFloat32},
          {"bf16 with fp32 masters", DType::kBFloat16, MasterWeights::kFloat32},
          {"bf16 with low bits", DType::kBFloat16, MasterWeights::kSplit},
          {"frozen in bf16", DType::kFloat32, MasterWeights::kFloat32, Storage::kBFloat16},
          {"frozen in 4 bits", DType::kBFloat16, MasterWeights::kSplit, Storage::kNf4}};
}

RunOptions FillOptionsOf(const FillCase& test) {
  RunOptions options;
  options.model = DecoderOfManyRounds();
  options.dtype = test.dtype;
  options.step.master = test.master;
  options.steps = 0;
  options.reads_gradients = false;
  options.digests_state = true;
  if (test.stored == Storage::kAsUsed) return options;
  options.frozen_weights = test.stored;
  options.train_only = {"blocks.1.ffn.*", "head.weight"};
  return options;
}

std::vector<Parameter> ParametersOf(const RunOptions& options) {
  return BuildModel(options.model, {.compute_dtype = options.dtype,
                                    .micro_batch = 1,
                                    .sequence_length = 5,
                                    .loss_chunk_tokens = options.loss_chunk_tokens,
                                    .train_only = options.train_only,
                                    .frozen_weights = options.frozen_weights})
      ->parameters;
}

RunResult Filled(const RunOptions& options) {
  return MustRun(options, RandomTokens(options.step.mesh.ranks(), 5, SmallDecoder().vocabulary, 5));
}

// Returns what a parameter in 4 bits holds, quantized block by block as kernels/nf4.h says.
std::vector<float> QuantizedAndBack(std::vector<float> values) {
  std::vector<float> absmax;
  std::vector<uint8_t> codes(CeilDivide(std::ssize(values), 2)), of_absmax(kNf4GroupBlocks);
  for (size_t i = 0; i < values.size(); i += kNf4BlockWeights) {
    absmax.push_back(QuantizeNf4Block(absl::MakeConstSpan(values).subspan(i, kNf4BlockWeights), codes.data() + i / 2));
  }
  const float mean = MeanOfAbsmax(absmax);
  for (size_t i = 0; i < values.size(); i += kNf4GroupWeights) {
    const auto group = absl::MakeConstSpan(absmax).subspan(i / kNf4BlockWeights, kNf4GroupBlocks);
    const float scale = QuantizeAbsmax(group, mean, of_absmax.data());
    DequantizeNf4(codes.data() + i / 2, of_absmax.data(), scale, mean,
                  absl::MakeSpan(values).subspan(i, kNf4GroupWeights));
  }
  return values;
}

TEST(FillLaws, StagingThreadsAndRanksChangeNoBits) {
  struct Way {
    Strategy strategy;
    Accumulation accumulation;
    Mesh mesh;
    bool offloaded = false;
  };
  std::vector<Way> ways = {{Strategy::kDdp, Accumulation::kNoSync, {1, 1}},
                           {Strategy::kZero1, Accumulation::kNoSync, {1, 3}},
                           {Strategy::kFullShard, Accumulation::kSharded, {1, 3}},
                           {Strategy::kFullShard, Accumulation::kSharded, {2, 2}, /*offloaded=*/true}};
  if (TestsTheCudaBackend()) ways = {ways[2]};
  for (const FillCase& test : FillCases()) {
    std::map<std::string, std::vector<float>> expected, read;  // What weights are, and what they were read as.
    for (const Way& way : ways) {
      RunOptions options = FillOptionsOf(test);
      options.step.strategy = way.strategy;
      options.step.accumulation = way.accumulation;
      options.step.mesh = way.mesh;
      options.step.offload_state.parameters = way.offloaded;
      const std::string what = absl::StrCat(test.name, ", ", ToString(way.strategy), " ", way.mesh.ranks());
      const RunResult one = Filled(options);
      if (expected.empty()) {
        expected = one.weights;
        for (const Parameter& p : ParametersOf(options)) {
          std::vector<float> values(p.elements());
          FillInitialValues(p, 3, 0, absl::MakeSpan(values));
          read[p.name] = values;
          if (p.storage == Storage::kNf4) values = QuantizedAndBack(values);
          const bool has_no_master = p.frozen && p.storage == Storage::kAsUsed;
          if (p.storage == Storage::kBFloat16 || (has_no_master && test.dtype == DType::kBFloat16)) {
            for (float& value : values) value = ToFloat(RoundMaster(value));
          }
          EXPECT_TRUE(expected.at(p.name) == values) << what << ": " << p.name;
        }
      }
      EXPECT_TRUE(one.weights == expected) << what;
      options.fill_threads = 3;  // One until now, and a staging memory for one round.
      for (const int64_t staging : {kLeastFillStagingBytes, kStagingBytes}) {
        options.staging_bytes = staging;
        const RunResult other = Filled(options);
        EXPECT_TRUE(other.initial == one.initial) << what << ", " << staging << " bytes";
        EXPECT_LE(other.measured_peak_bytes, other.plan.peak_bytes) << what;
      }
      if (way.mesh.replicate > 1) continue;
      // Whoever writes the values into a run finds the same.
      options.edit_weights = [&](const std::string& name, std::vector<float>& values) { values = read.at(name); };
      EXPECT_TRUE(Filled(options).weights == expected) << what;
    }
  }
}

TEST(FillLaws, TheErrorOfTheFirstElementsIsReported) {
  for (const FillCase& test : FillCases()) {
    RunOptions options = FillOptionsOf(test);
    options.fill_threads = 3;
    options.read_weights = [](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
      FillInitialValues(parameter, 3, begin, values);
      if (parameter.name != "blocks.0.ffn.gate_up.weight") return absl::OkStatus();
      return begin + std::ssize(values) <= 20'000 ? absl::OkStatus()
                                                  : absl::DataLossError(absl::StrCat("from ", begin));
    };
    const absl::Status status = RunJob(options, RandomTokens(1, 5, SmallDecoder().vocabulary, 5)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << test.name << ": " << status;
    EXPECT_EQ(status.message(), "from 16384") << test.name;
  }
}

TEST(FillLaws, AThreadWithoutMemoryIsAnErrorOfItsRank) {
  RunOptions options = FillOptionsOf(FillCases()[0]);
  options.fill_threads = 3;
  options.read_weights = [](const Parameter&, int64_t, absl::Span<float>) -> absl::Status { throw std::bad_alloc(); };
  const absl::Status status = RunJob(options, RandomTokens(1, 5, SmallDecoder().vocabulary, 5)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 cannot allocate memory"));
}

}  // namespace
}  // namespace shale::testing
