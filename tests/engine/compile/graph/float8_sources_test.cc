// UseFloat8Sources, which lets ops that quantize compute what they read, on graphs of a few layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/model/model.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/norm.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kWidth = 32, kInner = 48;

// A block whose layers a test adds, between an embedding and a head.
class Float8SourcesTest : public ::testing::Test {
 protected:
  using Layers = std::function<Tensor(GraphBuilder&, const Tensor& input)>;

  ParameterId Matrix(GraphBuilder& b, const std::string& name, int64_t rows, int64_t columns) {
    return b.AddParameter(0, name, {rows, columns}, kOnes);
  }
  NormParameters NormOf(GraphBuilder& b, const std::string& name) {
    return {.weight = b.AddParameter(0, name, {kWidth}, kOnes)};
  }

  // Returns the graph of the block.
  UnitGraph Build(const Layers& layers) {
    GraphBuilder b(options_);
    b.AddGroup("all");
    b.BeginUnit("embedding");
    b.EndUnit(Embedding(b, Matrix(b, "table", 5, kWidth), std::nullopt));
    b.BeginUnit("block", 0);
    b.EndUnit(layers(b, b.UnitInput()));
    b.BeginUnit("head");
    LinearCrossEntropy(b, b.UnitInput(), Matrix(b, "head", 5, kWidth), std::nullopt);
    b.EndLastUnit();
    absl::StatusOr<ModelGraph> graph = b.Finish();
    if (!graph.ok()) {
      ADD_FAILURE() << graph.status();
      return {};
    }
    for (const std::vector<Node>* nodes : {&graph->units[1].forward, &graph->units[1].backward}) {
      for (const Node& node : *nodes) EXPECT_TRUE(Validate(node.op).ok()) << Validate(node.op);
    }
    return graph->units[1];
  }

  // A norm, a gate and the linear layers around it.
  Layers FeedForward() {
    return [this](GraphBuilder& b, const Tensor& input) {
      const Tensor normal = Norm(b, input, NormOf(b, "norm"), "norm");
      const Tensor gate_up = Linear(b, normal, Matrix(b, "gate_up", 2 * kInner, kWidth), std::nullopt, "gate_up");
      const Tensor down = Linear(b, SwiGlu(b, gate_up), Matrix(b, "down", kWidth, kInner), std::nullopt, "down");
      return AddResidual(b, input, down, "out");
    };
  }

  // Attention whose queries and keys are rotated, with norms of their heads if `norms` is set. The layer before it has
  // a bias if `bias` is set.
  Layers RotatedAttention(bool bias, bool norms) {
    return [=, this](GraphBuilder& b, const Tensor& input) {
      constexpr int64_t kHeads = 2, kHeadWidth = 8, kColumns = kHeads * kHeadWidth;
      std::optional<ParameterId> vector;
      if (bias) vector = b.AddParameter(0, "bias", {3 * kColumns}, kOnes);
      const Tensor qkv = Linear(b, input, Matrix(b, "qkv", 3 * kColumns, kWidth), vector, "qkv");
      const auto heads = [&](const Tensor& x, int64_t first, int64_t count) {
        return SplitLast(b, Slice(b, x, 1, first * kColumns, count * kColumns), count * kHeads);
      };
      Tensor qk = qkv;
      if (norms) {
        qk = b.NewActivation("normed", input.dtype, {input.dim(0), 2 * kColumns});
        HeadNorm(b, heads(qkv, 0, 2), {.weight = b.AddParameter(0, "heads", {kHeadWidth}, kOnes)}, heads(qk, 0, 2),
                 "heads");
      }
      ApplyRope(b, SplitFirst(b, heads(qk, 0, 2), 1), 100, {});
      const Tensor out = Attention(b, SplitFirst(b, heads(qk, 0, 1), 1), SplitFirst(b, heads(qk, 1, 1), 1),
                                   SplitFirst(b, heads(qkv, 2, 1), 1), /*window=*/0);
      return AddResidual(b, input, Linear(b, out, Matrix(b, "out", kWidth, kColumns), std::nullopt, "projected"),
                         "out");
    };
  }

  // Returns the names of ops other than those on weights, with their sources.
  static std::vector<std::string> Listing(const UnitGraph& unit, const std::vector<Node>& nodes) {
    std::vector<std::string> listing;
    for (const Node& node : nodes) {
      const auto* find = node.op.As<AbsMax>();
      const auto* quantize = node.op.As<QuantizeFloat8>();
      std::string name(NameOf(node.op).data(), NameOf(node.op).size());
      if (find != nullptr || quantize != nullptr) {
        const Tensor& x = find != nullptr ? find->x_RC : quantize->x_RC;
        if (unit.values[x.where.symbol].role == ValueRole::kParameter) continue;
        absl::StrAppend(&name, " ", ToString((find != nullptr ? find->source : quantize->source).kind));
      }
      listing.push_back(name);
    }
    return listing;
  }
  static int Count(const std::vector<std::string>& listing, const std::string& name) {
    return static_cast<int>(std::count(listing.begin(), listing.end(), name));
  }

  GraphOptions options_{.compute_dtype = DType::kBFloat16,
                        .micro_batch = 1,
                        .sequence_length = 16,
                        .vocabulary = 5,
                        .float8_matmuls = true};
};

TEST_F(Float8SourcesTest, OpsThatQuantizeComputeNormsAndGates) {
  const UnitGraph unit = Build(FeedForward());
  EXPECT_THAT(Listing(unit, unit.forward), ElementsAre("RmsNormForward", "AbsMax norm", "QuantizeFloat8 norm", "MatMul",
                                                       "AbsMax gate", "QuantizeFloat8 gate", "MatMul", "Add"));
  EXPECT_THAT(Listing(unit, unit.backward),
              ElementsAre("AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "AbsMax gate_gradient",
                          "QuantizeFloat8 gate_gradient", "MatMul", "MatMul", "RmsNormBackward"));
  const auto* norm = unit.forward[0].op.As<RmsNormForward>();
  EXPECT_FALSE(norm->y.present() || norm->weight_C.present());
  // Producers are those of the nodes that are left.
  for (const Value& value : unit.values) {
    for (const int producer : value.producers) {
      bool writes = false;
      VisitOperands(unit.forward[producer].op, [&](absl::string_view, const Tensor& t, Access access) {
        writes |= t.present() && access != Access::kRead && &unit.values[t.where.symbol] == &value;
      });
      EXPECT_TRUE(writes) << value.name;
    }
  }
}

// Falcon's: neither layer has a bias.
TEST_F(Float8SourcesTest, OpsThatQuantizeComputeLayerNormsAndGelu) {
  const UnitGraph unit = Build([&](GraphBuilder& b, const Tensor& input) {
    NormParameters norm = NormOf(b, "norm");
    norm.bias = b.AddParameter(0, "norm.bias", {kWidth}, kOnes);
    const Tensor normal = Norm(b, input, norm, "norm");
    const Tensor up = Linear(b, normal, Matrix(b, "up", kInner, kWidth), std::nullopt, "up");
    const Tensor gelu = GeluErf(b, up);
    return AddResidual(b, input, Linear(b, gelu, Matrix(b, "down", kWidth, kInner), std::nullopt, "down"), "out");
  });
  EXPECT_THAT(Listing(unit, unit.forward),
              ElementsAre("LayerNormForward", "AbsMax layer_norm", "QuantizeFloat8 layer_norm", "MatMul", "AbsMax gelu",
                          "QuantizeFloat8 gelu", "MatMul", "Add"));
  EXPECT_THAT(Listing(unit, unit.backward),
              ElementsAre("AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "AbsMax gelu_gradient",
                          "QuantizeFloat8 gelu_gradient", "MatMul", "MatMul", "LayerNormBackward"));
  const auto* norm = unit.forward[0].op.As<LayerNormForward>();
  EXPECT_FALSE(norm->y.present() || norm->weight_C.present() || norm->bias_C.present());
}

// Llama's: attention writes gradients of rotated queries and keys, beside those of values, and RoPE rotates them back.
TEST_F(Float8SourcesTest, OpsThatQuantizeRotateGradientsBack) {
  const UnitGraph unit = Build(RotatedAttention(/*bias=*/false, /*norms=*/false));
  EXPECT_THAT(Listing(unit, unit.backward),
              ElementsAre("AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "AttentionBackward",
                          "AbsMax rope", "QuantizeFloat8 rope", "MatMul", "MatMul", "Add"));
  for (const Node& node : unit.backward) {
    const auto* find = node.op.As<AbsMax>();
    if (find == nullptr || find->source.kind != Float8Source::Kind::kRope) continue;
    EXPECT_EQ(find->x_RC.shape, Tensor::Contiguous(DType::kBFloat16, {16, 48}).shape);
    const Float8Source::Rotation& rotation = find->source.rotation;
    EXPECT_EQ(rotation.sequence_length, 16);
    EXPECT_EQ(rotation.heads, 4);
    EXPECT_EQ(rotation.head_width, 8);
    EXPECT_EQ(rotation.theta, 100);
  }
}

// Qwen 2's: the gradient of the bias sums what RoPE writes. Qwen 3's: the gradient of a norm reads it, and writes what
// is quantized.
TEST_F(Float8SourcesTest, ARotatedGradientThatAnotherOpReadsIsWritten) {
  const UnitGraph biased = Build(RotatedAttention(/*bias=*/true, /*norms=*/false));
  EXPECT_THAT(Listing(biased, biased.backward),
              ElementsAre("AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "AttentionBackward", "Rope",
                          "AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "BiasBackward", "Add"));
  const UnitGraph normed = Build(RotatedAttention(/*bias=*/false, /*norms=*/true));
  EXPECT_THAT(Listing(normed, normed.backward),
              ElementsAre("AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "AttentionBackward", "Rope",
                          "RmsNormBackward", "AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "MatMul", "Add"));
}

// A block of a decoder has four linear layers. Norms and the gate write what three of them read.
TEST_F(Float8SourcesTest, WithoutThemOpsReadMatrices) {
  const DecoderConfig decoder = {.vocabulary = 5,
                                 .width = kWidth,
                                 .layers = 1,
                                 .heads = 2,
                                 .kv_heads = 2,
                                 .head_width = kWidth / 2,
                                 .hidden = kInner,
                                 .max_positions = 16};
  for (const Float8Sources sources : {Float8Sources::kUsed, Float8Sources::kNotUsed}) {
    const absl::StatusOr<ModelGraph> graph = BuildDecoder(decoder, options_, sources);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const UnitGraph& unit = graph->units[1];
    const bool used = sources == Float8Sources::kUsed;
    EXPECT_EQ(Count(Listing(unit, unit.forward), "AbsMax matrix"), used ? 1 : 4);
    EXPECT_EQ(Count(Listing(unit, unit.backward), "SwiGluBackward"), used ? 0 : 1);
  }
}

TEST_F(Float8SourcesTest, AMatrixThatAnotherOpReadsIsWritten) {
  const UnitGraph unit = Build([&](GraphBuilder& b, const Tensor& input) {
    const Tensor normal = Norm(b, input, NormOf(b, "norm"), "norm");
    const Tensor gate_up = Linear(b, normal, Matrix(b, "gate_up", 2 * kInner, kWidth), std::nullopt, "gate_up");
    const Tensor gated = SwiGlu(b, gate_up);
    const Tensor down = Linear(b, gated, Matrix(b, "down", kWidth, kInner), std::nullopt, "down");
    // Adds the gated half to itself, and the norm to the output.
    AddResidual(b, gated, gated, "twice");
    return AddResidual(b, normal, down, "out");
  });
  EXPECT_EQ(Count(Listing(unit, unit.forward), "AbsMax matrix"), 2);
  EXPECT_EQ(Count(Listing(unit, unit.forward), "SwiGluForward"), 1);
  // Backward may want the result of the gate, which the gate's gradient can compute again.
  EXPECT_EQ(Count(Listing(unit, unit.backward), "SwiGluBackward"), 1);
}

// What a norm reads is updated in place after it. Backward would compute its result again from other numbers.
TEST_F(Float8SourcesTest, AMatrixWhoseOriginsChangeIsWritten) {
  const UnitGraph unit = Build([&](GraphBuilder& b, const Tensor& input) {
    const Tensor x = Linear(b, input, Matrix(b, "x", kWidth, kWidth), std::nullopt, "x");
    const Tensor normal = Norm(b, x, NormOf(b, "norm"), "norm");
    const Tensor y = Linear(b, normal, Matrix(b, "y", kWidth, kWidth), std::nullopt, "y");
    ApplyRope(b, SplitFirst(b, SplitLast(b, x, 1), 1), 100, {});
    return AddResidual(b, AddResidual(b, x, y, "sum"), input, "out");
  });
  EXPECT_EQ(Count(Listing(unit, unit.forward), "AbsMax norm"), 0);
}

// Nothing below the weight of the linear layer trains. So backward reads no statistics of the norm, and does not keep
// them to compute the layer's input again.
TEST_F(Float8SourcesTest, BackwardKeepsNoMoreForSources) {
  options_.train_only = {"down"};
  const UnitGraph unit = Build(FeedForward());
  EXPECT_THAT(Listing(unit, unit.forward),
              ElementsAre("RmsNormForward", "AbsMax norm", "QuantizeFloat8 norm", "MatMul", "SwiGluForward",
                          "AbsMax matrix", "QuantizeFloat8 matrix", "MatMul", "Add"));
}

TEST_F(Float8SourcesTest, EvaluationHasThemToo) {
  options_.mode = GraphMode::kEvaluation;
  const UnitGraph unit = Build(FeedForward());
  EXPECT_EQ(Count(Listing(unit, unit.forward), "AbsMax gate"), 1);
  EXPECT_EQ(Count(Listing(unit, unit.forward), "SwiGluForward"), 0);
}

}  // namespace
}  // namespace shale::testing
