// Compares adapters with PEFT on the folders of tests/parity/golden/adapter (tests/parity/README.md describes them):
// they train as in PEFT, and are exported as they were imported.
#include "engine/compile/model/adapter.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/export.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/weights.h"
#include "tests/engine/job_harness.h"
#include "tests/parity/golden_folder.h"

namespace shale::testing {
namespace {

constexpr int kAdapterSteps = 20;

struct AdapterCase {
  const char* name;
  const char* base;
  std::vector<std::string> targets;
  Storage frozen_weights = Storage::kAsUsed;
  // Whether the base computes with the weights of PEFT. Otherwise only losses are compared, to 1e-3.
  bool same_base = true;
};

class AdapterParity : public ::testing::TestWithParam<AdapterCase> {
 protected:
  void SetUp() override {
    config_ = ReadHfConfig(base_.path()).value();
    absl::StatusOr<AdapterConfig> adapter = ReadHfAdapterConfig(original_.path());
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    model_ = std::make_unique<HfWeights>(HfWeights::Open(base_.path(), config_).value());
    config_.adapter = *adapter;
    config_.adapter->targets = GetParam().targets;
    absl::StatusOr<HfWeights> weights = HfWeights::OpenAdapter(original_.path(), config_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    adapter_ = std::make_unique<HfWeights>(*std::move(weights));
    golden_ =
        std::make_unique<SafetensorsReader>(SafetensorsReader::Open(original_.path() + "/golden.safetensors").value());
    const SafetensorsReader batch = SafetensorsReader::Open(base_.path() + "/golden.safetensors").value();
    const SafetensorsTensor& inputs = *batch.Find("inputs");
    tokens_ = {inputs.shape[0], inputs.shape[1], Raw<int32_t>(batch, "inputs"), Raw<int32_t>(batch, "targets")};
  }

  absl::Status Read(absl::string_view parameter, int64_t begin, absl::Span<float> values) const {
    return (IsAdapterParameter(parameter) ? *adapter_ : *model_).Read(parameter, begin, values);
  }

  // The settings of make_adapter_goldens.py.
  RunOptions Options() const {
    RunOptions options;
    options.model = config_;
    options.micro_batch = tokens_.sequences;
    options.loss_chunk_tokens = 11;
    options.steps = kAdapterSteps;
    options.learning_rate = 3e-3;
    options.max_norm = 1;
    options.frozen_weights = GetParam().frozen_weights;
    options.step.optimizer =
        MakeOptimizer(OptimizerKind::kAdamW, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1});
    options.edit_weights = [this](const std::string& parameter, std::vector<float>& values) {
      const absl::Status status = Read(parameter, 0, absl::MakeSpan(values));
      ASSERT_TRUE(status.ok()) << status;
    };
    return options;
  }

  const GoldenFolder base_{absl::StrCat("hf/", GetParam().base)};
  const GoldenFolder original_{absl::StrCat("adapter/", GetParam().name)};
  DecoderConfig config_;
  std::unique_ptr<HfWeights> model_, adapter_;
  std::unique_ptr<SafetensorsReader> golden_;
  Tokens tokens_;
};

TEST_P(AdapterParity, TwentyStepsOfAdamWGoAsInPeft) {
  const std::vector<double> losses = Raw<double>(*golden_, "losses"), norms = Raw<double>(*golden_, "norms");
  ASSERT_EQ(losses.size(), kAdapterSteps);
  const TempFolder folder;
  WriteTensorsAfter(*golden_, folder.Path("adapter_model.safetensors"));
  const absl::StatusOr<HfWeights> after = HfWeights::OpenAdapter(folder.path(), config_);
  ASSERT_TRUE(after.ok()) << after.status();
  for (const int64_t ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    RunOptions options = Options();
    options.step.mesh = {.shard = ranks};
    if (ranks > 1) options.micro_batch = 1;
    const absl::StatusOr<RunResult> result = RunJob(options, tokens_);
    ASSERT_TRUE(result.ok()) << result.status();
    for (int step = 0; step < kAdapterSteps; ++step) {
      const double tolerance = GetParam().same_base ? 1e-5 : 1e-3;
      EXPECT_NEAR(result->losses[step], losses[step], tolerance * losses[step]) << "step " << step;
      if (!GetParam().same_base) continue;
      EXPECT_NEAR(result->norms[step], norms[step], 1e-4 * norms[step]) << "step " << step;
    }
    if (!GetParam().same_base) continue;
    for (const auto& [name, values] : result->weights) {
      std::vector<float> initial(values.size()), wanted(values.size());
      ASSERT_TRUE(Read(name, 0, absl::MakeSpan(initial)).ok());
      if (IsAdapterParameter(name)) {
        ASSERT_TRUE(after->Read(name, 0, absl::MakeSpan(wanted)).ok());
        ExpectTrainedLike(values, wanted, initial, kAdapterSteps, name);
      } else if (GetParam().frozen_weights == Storage::kAsUsed) {
        EXPECT_TRUE(values == initial) << name;
      }
    }
  }
}

// Under bazel test the exported folders are kept in TEST_UNDECLARED_OUTPUTS_DIR: tests/parity/check_adapter.py loads
// them.
TEST_P(AdapterParity, WhatGoesOutIsWhatCameInToTheBit) {
  const TempFolder temporary;
  const char* kept = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string root = absl::StrCat(kept != nullptr ? kept : temporary.path(), "/peft_", GetParam().name);
  const auto read = [this](absl::string_view parameter, int64_t begin, absl::Span<float> values) {
    return Read(parameter, begin, values);
  };
  const absl::Status status = ExportHfAdapter(config_, DType::kFloat32, GetParam().base, read, root);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(AllTensors(root) == AllTensors(original_.path()));
  AdapterConfig found = ReadHfAdapterConfig(root).value();
  found.targets = config_.adapter->targets;
  EXPECT_EQ(found, *config_.adapter);

  const HfParameterReader merged = WithAdaptersMerged(config_, read);
  EXPECT_TRUE(ExportHf(config_, {.base_folder = base_.path()}, merged, root + "_merged").ok());
}

INSTANTIATE_TEST_SUITE_P(Goldens, AdapterParity,
                         ::testing::Values(AdapterCase{"llama", "llama", {"*"}},
                                           AdapterCase{"qwen2_rslora", "qwen2", {"q_proj", "v_proj"}},
                                           AdapterCase{"gpt2", "gpt2", {"c_attn", "blocks.1.ffn.c_proj"}},
                                           AdapterCase{"falcon_40b_rslora", "falcon_40b", {"*"}},
                                           AdapterCase{"gemma2", "gemma2", {"*"}},
                                           AdapterCase{"gemma3", "gemma3", {"*"}},
                                           AdapterCase{"falcon_7b_nf4", "falcon_7b", {"*"}, Storage::kNf4},
                                           // Queries, keys and values are one matrix, with one mean.
                                           AdapterCase{"llama_blocks_nf4",
                                                       "llama_blocks",
                                                       {"*"},
                                                       Storage::kNf4,
                                                       /*same_base=*/false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shale::testing
