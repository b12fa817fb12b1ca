// Compares the engine with transformers on the folders of tests/parity/golden/hf (tests/parity/README.md describes
// them): an imported model trains as it does in transformers, and is exported as it was imported.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/export.h"
#include "engine/files/checkpoint/safetensors.h"
#include "engine/files/hugging_face/config.h"
#include "engine/files/hugging_face/weights.h"
#include "engine/files/io/file.h"
#include "engine/run/generate/next_tokens.h"
#include "tests/engine/files/io/temp_folder.h"
#include "tests/engine/generation_rig.h"
#include "tests/engine/job_harness.h"
#include "tests/parity/golden_folder.h"

namespace shale::testing {
namespace {

namespace fs = std::filesystem;

std::vector<float> ReadWhole(const HfWeights& weights, const std::string& name) {
  int64_t elements = 0;
  for (const HfParameterShape& parameter : weights.parameters()) {
    if (parameter.name != name) continue;
    elements = 1;
    for (const int64_t size : parameter.shape) elements *= size;
  }
  std::vector<float> values(elements);
  const absl::Status status = weights.Read(name, 0, absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<int32_t> Numbers(absl::string_view text) {
  std::vector<int32_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    numbers.push_back(-1);
    EXPECT_TRUE(absl::SimpleAtoi(part, &numbers.back())) << text;
  }
  return numbers;
}

class HfParity : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    absl::StatusOr<DecoderConfig> config = ReadHfConfig(original_.path());
    ASSERT_TRUE(config.ok()) << config.status();
    config_ = *config;
    absl::StatusOr<HfWeights> weights = HfWeights::Open(original_.path(), config_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = std::make_unique<HfWeights>(*std::move(weights));
    absl::StatusOr<SafetensorsReader> golden = SafetensorsReader::Open(original_.path() + "/golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = std::make_unique<SafetensorsReader>(*std::move(golden));
    const SafetensorsTensor* inputs = golden_->Find("inputs");
    ASSERT_NE(inputs, nullptr);
    tokens_ = {inputs->shape[0], inputs->shape[1], Raw<int32_t>(*golden_, "inputs"), Raw<int32_t>(*golden_, "targets")};
  }

  // By step.
  std::vector<double> Losses() const { return Raw<double>(*golden_, "losses"); }

  // Returns prompts and what follows them (make_greedy_goldens.py), by the penalty on repetitions.
  static std::map<double, std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>> GreedyTexts() {
    std::map<double, std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>> texts;
    const std::string goldens = ReadFile("tests/parity/golden/hf/greedy.txt", 1 << 20).value();
    for (const absl::string_view line : absl::StrSplit(goldens, '\n', absl::SkipEmpty())) {
      const std::vector<std::string> parts = absl::StrSplit(line, ' ');
      double penalty = 0;
      EXPECT_TRUE(parts.size() == 4 && absl::SimpleAtod(parts[1], &penalty)) << line;
      if (parts[0] == GetParam()) texts[penalty].push_back({Numbers(parts[2]), Numbers(parts[3])});
    }
    return texts;
  }

  // The settings of make_hf_goldens.py.
  RunOptions Options() const {
    RunOptions options;
    options.model = config_;
    options.micro_batch = tokens_.sequences;
    options.loss_chunk_tokens = 11;
    options.steps = std::ssize(Losses());
    options.learning_rate = 1e-3;
    options.max_norm = 1;
    options.step.optimizer =
        MakeOptimizer(OptimizerKind::kAdamW, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1});
    options.edit_weights = [this](const std::string& parameter, std::vector<float>& values) {
      const absl::Status status = weights_->Read(parameter, 0, absl::MakeSpan(values));
      ASSERT_TRUE(status.ok()) << status;
    };
    return options;
  }

  // Exports the imported weights as `dtype` to `folder`, on top of the folder `base` if it is not empty.
  absl::Status Export(DType dtype, const std::string& base, const std::string& folder) const {
    return ExportHf(
        config_, {.dtype = dtype, .max_file_bytes = 5000, .base_folder = base},
        [this](absl::string_view parameter, int64_t begin, absl::Span<float> values) {
          return weights_->Read(parameter, begin, values);
        },
        folder);
  }

  const GoldenFolder original_{"hf/" + GetParam()};
  DecoderConfig config_;
  std::unique_ptr<HfWeights> weights_;
  std::unique_ptr<SafetensorsReader> golden_;
  Tokens tokens_;
};

TEST_P(HfParity, StepsOfAdamWGoAsInTransformers) {
  const absl::StatusOr<RunResult> result = RunJob(Options(), tokens_);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<double> losses = Losses(), norms = Raw<double>(*golden_, "norms");
  ASSERT_GE(losses.size(), 8);
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(result->losses[step], losses[step], 1e-5 * losses[step]) << "step " << step;
    // Later gradients are those of weights that rounding moved apart: transformers in fp32 is 3e-4 from itself in fp64.
    EXPECT_NEAR(result->norms[step], norms[step], (step < 8 ? 1e-4 : 1e-3) * norms[step]) << "step " << step;
  }

  // Under our names.
  const TempFolder folder;
  WriteTensorsAfter(*golden_, folder.Path("model.safetensors"));
  const absl::StatusOr<HfWeights> after = HfWeights::Open(folder.path(), config_);
  ASSERT_TRUE(after.ok()) << after.status();
  for (const auto& [name, values] : result->weights) {
    ExpectTrainedLike(values, ReadWhole(*after, name), ReadWhole(*weights_, name), static_cast<int>(losses.size()),
                      name);
  }
}

TEST_P(HfParity, ShardedOverThreeRanksTheLossesAreTheSame) {
  RunOptions options = Options();
  options.micro_batch = 1;
  options.step.mesh = {.shard = 3};
  const absl::StatusOr<RunResult> result = RunJob(options, tokens_);
  ASSERT_TRUE(result.ok()) << result.status();
  const std::vector<double> losses = Losses();
  for (size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(result->losses[step], losses[step], 1e-5 * losses[step]);
}

// Under bazel test the exported folders are kept in TEST_UNDECLARED_OUTPUTS_DIR: tests/parity/check_export.py loads
// them.
TEST_P(HfParity, WhatGoesOutIsWhatCameInToTheBit) {
  const std::map<std::string, std::string> wanted = AllTensors(original_.path());
  ASSERT_FALSE(wanted.empty());
  const std::string& first = wanted.begin()->second;
  const DType dtype = absl::StartsWith(first, "BF16")  ? DType::kBFloat16
                      : absl::StartsWith(first, "F16") ? DType::kFloat16
                                                       : DType::kFloat32;
  const TempFolder temporary;
  const char* kept = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  const std::string root = kept != nullptr ? kept : temporary.path();
  for (const bool based : {true, false}) {
    const std::string folder = absl::StrCat(root, "/", GetParam(), based ? "" : "_new");
    const absl::Status status = Export(dtype, based ? original_.path() : "", folder);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(fs::exists(folder + "/model.safetensors.index.json"));
    const std::map<std::string, std::string> found = AllTensors(folder);
    EXPECT_EQ(found.size(), wanted.size());
    for (const auto& [name, bytes] : wanted) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found.at(name) == bytes) << name;
    }
    const absl::StatusOr<DecoderConfig> config = ReadHfConfig(folder);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(*config, config_);
    if (based) {
      EXPECT_EQ(ReadFile(folder + "/generation_config.json", 1 << 20).value(),
                ReadFile(original_.path() + "/generation_config.json", 1 << 20).value());
    }
  }
}

// Prompts of different lengths are generated at once, with and without a penalty, past the window where there is one.
TEST_P(HfParity, TheMostLikelyTokensAreThoseOfTransformers) {
  const auto cases = GreedyTexts();
  ASSERT_EQ(cases.size(), 2);
  GenerationSetting setting{.model = config_, .window = std::min<int64_t>(64, config_.max_positions)};
  setting.size.sequences = 3;
  GenerationRig rig(setting, /*cached=*/true,
                    [this](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
                      return weights_->Read(parameter.name, begin, values);
                    });
  for (const auto& [penalty, texts] : cases) {
    ASSERT_EQ(texts.size(), 3);
    std::vector<std::vector<int32_t>> prompts, drawn(texts.size());
    for (const auto& [prompt, tokens] : texts) prompts.push_back(prompt);
    const absl::Status status =
        NextTokens(rig.sequences())
            .GenerateAll(prompts, {.count = 40, .sampling = {.repetition_penalty = penalty, .temperature = 0}},
                         [&](int64_t i, int32_t token) {
                           drawn[i].push_back(token);
                           return drawn[i].size() < texts[i].second.size();
                         });
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(drawn[i], texts[i].second) << "penalty " << penalty << " " << i;
  }
}

// In halves a text is that of transformers up to the first token at which fp32 says that the best two are so close that
// rounding may exchange them: logits have 11 bits, and activations of two blocks are rounded to as many.
TEST_P(HfParity, HalvesGenerateTheTokensOfTransformersUntilTwoAreClose) {
  GenerationSetting setting{.model = config_, .window = std::min<int64_t>(64, config_.max_positions)};
  const auto read = [this](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
    return weights_->Read(parameter.name, begin, values);
  };
  GenerationRig wide(setting, /*cached=*/true, read);
  setting.precision = ComputePrecision::kFloat16;
  GenerationRig halves(setting, /*cached=*/true, read);
  int64_t equal = 0;
  const auto cases = GreedyTexts();
  for (const auto& [prompt, tokens] : cases.at(1)) {
    std::vector<int32_t> drawn, text = prompt;
    const absl::Status status =
        NextTokens(halves.sequences()).Generate(prompt, std::ssize(tokens), {.temperature = 0}, [&](int32_t token) {
          drawn.push_back(token);
          return true;
        });
    ASSERT_TRUE(status.ok()) << status;
    const int64_t same = std::mismatch(drawn.begin(), drawn.end(), tokens.begin(), tokens.end()).first - drawn.begin();
    equal += same;
    if (same == std::ssize(tokens)) continue;
    text.insert(text.end(), tokens.begin(), tokens.begin() + same);
    const std::vector<float> logits = wide.After(text);
    EXPECT_NEAR(logits[drawn[same]], logits[tokens[same]], 2e-2) << same;
  }
  EXPECT_GE(equal, 20);
}

INSTANTIATE_TEST_SUITE_P(Goldens, HfParity, ::testing::ValuesIn(GoldenFolders("hf")),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace shale::testing
