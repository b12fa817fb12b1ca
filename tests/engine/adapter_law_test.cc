// The laws of low-rank adapters: W + scale B A in the place of W, of which only A and B train.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/model/adapter.h"
#include "engine/run/verify/trial_run.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using Matrix = std::vector<float>;

// As kReordered of laws_test.cc.
constexpr double kReordered = 2e-5;

// Separate queries, keys and values, gate and up.
DecoderConfig Llama() {
  DecoderConfig model = SmallDecoder();
  model.qk_norm = true;
  model.adapter = AdapterConfig{.rank = 3, .alpha = 2, .targets = {"*"}};
  return model;
}

// One layer for queries, keys and values, and biases.
DecoderConfig Gpt2() {
  DecoderConfig model = SmallDecoder();
  model.tied_head = true;
  model.position = PositionKind::kLearned;
  model.norm = NormKind::kLayerNorm;
  model.activation = Activation::kGeluTanh;
  model.qkv_bias = model.linear_bias = true;
  model.adapter =
      AdapterConfig{.rank = 5, .alpha = 4, .rank_stabilized = true, .targets = {"c_attn", "blocks.1.ffn.c_proj"}};
  return model;
}

DecoderConfig Falcon() {
  DecoderConfig model = SmallDecoder();
  model.norm = NormKind::kLayerNorm;
  model.activation = Activation::kGeluErf;
  model.parallel_block = true;
  model.adapter = AdapterConfig{.rank = 2, .alpha = 2, .targets = {"blocks.2.*", "dense"}};
  return model;
}

// Layers of two kinds, GEGLU, and norms after sublayers.
DecoderConfig Gemma() {
  DecoderConfig model = GemmaLike(SmallDecoder());
  model.adapter = AdapterConfig{.rank = 2, .alpha = 3, .targets = {"q_proj", "gate_proj", "o_proj"}};
  return model;
}

// B begins as zeros, with which the model would be its base and A would have no gradient.
void FillB(const std::string& name, std::vector<float>& values) {
  if (!absl::EndsWith(name, ".lora_B.weight")) return;
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(static_cast<int>(i * 7 % 11) - 5);
}

// Returns factor op(a) op(b) for op(a) [M, K] and op(b) [K, N].
Matrix Multiply(double factor, const Matrix& a, bool transpose_a, const Matrix& b, bool transpose_b, int64_t m,
                int64_t n, int64_t k) {
  Matrix c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a[transpose_a ? l * m + i : i * k + l]) * b[transpose_b ? j * k + l : l * n + j];
      }
      c[i * n + j] = static_cast<float>(factor * sum);
    }
  }
  return c;
}

// Calls visit(weight, linear, A, B) for each adapter, with names of parameters.
void ForEachAdapter(const DecoderConfig& model,
                    const std::function<void(const std::string&, const AdaptableLinear&, const std::string&,
                                             const std::string&)>& visit) {
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    for (const AdaptableLinear& linear : AdaptedLinears(model, layer)) {
      visit(absl::StrCat("blocks.", layer, ".", linear.linear, ".weight"), linear, linear.NameOfA(layer),
            linear.NameOfB(layer));
    }
  }
}

// With the gradient G of W + scale B A, that of A is scale B^T G, and that of B is scale G A^T.
TEST(AdapterLaws, AnAdapterIsAnUpdateOfItsWeight) {
  for (const DecoderConfig& model : {Llama(), Gpt2(), Falcon(), Gemma()}) {
    SCOPED_TRACE(model.adapter->targets[0]);
    const Tokens tokens = RandomTokens(3, 11, model.vocabulary, 5);
    const int64_t R = model.adapter->rank;
    RunOptions options;
    options.model = model;
    options.learning_rate = 0;
    options.edit_weights = FillB;
    const RunResult adapted = MustRun(options, tokens);

    RunOptions plain = options;
    std::get<DecoderConfig>(plain.model).adapter.reset();
    std::map<std::string, std::vector<float>> updates;
    ForEachAdapter(model, [&](const std::string& weight, const AdaptableLinear& linear, const std::string& a,
                              const std::string& b) {
      const Matrix update = Multiply(model.adapter->Scale(), adapted.weights.at(b), false, adapted.weights.at(a), false,
                                     linear.out, linear.in, R);
      std::vector<float>& all = updates[weight];
      all.resize(std::max<size_t>(all.size(), (linear.row + linear.out) * linear.in));
      std::copy(update.begin(), update.end(), all.begin() + linear.row * linear.in);
    });
    plain.edit_weights = [&](const std::string& name, std::vector<float>& values) {
      const auto found = updates.find(name);
      if (found == updates.end()) return;
      for (size_t i = 0; i < found->second.size(); ++i) values[i] += found->second[i];
    };
    const RunResult merged = MustRun(plain, tokens);
    ASSERT_FALSE(adapted.losses.empty());
    ASSERT_FALSE(merged.losses.empty());
    EXPECT_NEAR(adapted.losses[0], merged.losses[0], kReordered * merged.losses[0]);

    ParameterValues wanted;
    ForEachAdapter(model, [&](const std::string& weight, const AdaptableLinear& linear, const std::string& a,
                              const std::string& b) {
      const Matrix& all = merged.gradients.at(weight);
      const Matrix gradient(all.begin() + linear.row * linear.in, all.begin() + (linear.row + linear.out) * linear.in);
      wanted[a] =
          Multiply(model.adapter->Scale(), adapted.weights.at(b), true, gradient, false, R, linear.in, linear.out);
      wanted[b] =
          Multiply(model.adapter->Scale(), gradient, false, adapted.weights.at(a), true, linear.out, R, linear.in);
    });
    // Only adapters have gradients.
    ASSERT_EQ(adapted.gradients.size(), wanted.size());
    std::string worst;
    EXPECT_LE(LargestDistance(adapted.gradients, wanted, &worst), kReordered) << worst;
  }
}

TEST(AdapterLaws, TrainingBeginsAtTheBaseModel) {
  RunOptions options;
  options.model = Llama();
  const Tokens tokens = RandomTokens(3, 11, Llama().vocabulary, 5);
  const RunResult adapted = MustRun(options, tokens);
  std::get<DecoderConfig>(options.model).adapter.reset();
  EXPECT_EQ(adapted.losses, MustRun(options, tokens).losses);
}

TEST(AdapterLaws, TheBaseKeepsItsBitsAndAdaptersTrainAsOnOneRank) {
  RunOptions options;
  options.model = Gpt2();
  options.steps = 3;
  options.edit_weights = FillB;
  ExpectRanksAgree(options, RandomTokens(7, 11, Gpt2().vocabulary, 5), IsAdapterParameter);
}

// QLoRA (Dettmers et al., 2023): adapters of a model whose matrices are stored in 4 bits.
TEST(AdapterLaws, TheSameHoldsForABaseIn4Bits) {
  const Tokens tokens = RandomTokens(7, 11, Llama().vocabulary, 5);
  RunOptions options;
  options.model = Llama();
  options.frozen_weights = Storage::kNf4;
  options.steps = 3;
  options.gradients_of_first_step = true;
  options.edit_weights = FillB;
  const RunResult one = MustRun(options, tokens);
  ASSERT_FALSE(one.losses.empty());
  EXPECT_EQ(one.measured_peak_bytes, one.plan.peak_bytes);
  for (const Mesh& mesh : {Mesh{1, 3}, Mesh{2, 2}}) {
    options.step.mesh = mesh;
    const RunResult result = MustRun(options, tokens);
    ASSERT_FALSE(result.losses.empty());
    EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes);
    for (const auto& [name, weight] : result.weights) {
      if (IsAdapterParameter(name)) continue;
      EXPECT_EQ(weight, one.weights.at(name)) << name;
    }
    std::string worst;
    EXPECT_NEAR(result.losses[0], one.losses[0], kReordered * one.losses[0]);
    EXPECT_LE(LargestDistance(result.gradients, one.gradients, &worst), kReordered) << worst;
  }
}

TEST(AdapterLaws, NoSyncAndLayeredAgreeToTheBitAndSoDoesEveryKindOfRecomputation) {
  const Tokens tokens = RandomTokens(5, 11, Llama().vocabulary, 7);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    RunOptions options;
    options.model = Llama();
    options.dtype = dtype;
    options.edit_weights = FillB;
    options.step.mesh = {.shard = 2};
    options.steps = 2;
    ExpectSchedulesAgree(options, tokens, /*most_blocks=*/2, [](RunOptions& o, const auto& expect_same) {
      o.step.activations = {.patterns = {"*.lora", "*.qkv"}};
      expect_same("recomputed adapters");
    });
  }
}

}  // namespace
}  // namespace shale::testing
