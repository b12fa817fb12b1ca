#include "engine/hugging_face/layout.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/hugging_face/model_type.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Builds the layout of a decoder: H query heads, G key/value heads, D head width, C model width, F inner width.
class Builder {
 public:
  explicit Builder(const DecoderConfig& config) : c_(config) {}

  HfLayout Build(HfModelType type) {
    switch (type) {
      case HfModelType::kGpt2: BuildGpt2(); break;
      case HfModelType::kFalcon: BuildFalcon(); break;
      default: BuildLlamaLike();
    }
    if (!c_.tied_head) {
      Add("head.weight", {c_.vocabulary, c_.width}, {{HfLayout::kHeadName, c_.vocabulary}});
      layout_.tensors.back().prefixed = false;
    }
    for (HfTensor& tensor : layout_.tensors) {
      std::sort(tensor.pieces.begin(), tensor.pieces.end(),
                [](const HfPiece& a, const HfPiece& b) { return a.tensor_row < b.tensor_row; });
    }
    for (size_t i = 0; i < layout_.parameters.size(); ++i) {
      layout_.parameter_index[layout_.parameters[i].name] = static_cast<int>(i);
    }
    return std::move(layout_);
  }

 private:
  // A tensor that holds the next `rows` rows of a parameter.
  struct Source {
    std::string tensor;
    int64_t rows;
  };

  void AddParameter(const std::string& name, std::vector<int64_t> shape) {
    HfParameter& parameter = layout_.parameters.emplace_back();
    parameter.name = name;
    parameter.shape = std::move(shape);
  }
  void AddTensor(const std::string& name, int64_t rows, bool transposed) {
    HfTensor& tensor = layout_.tensors.emplace_back();
    tensor.name = name;
    tensor.transposed = transposed;
    tensor.shape = {rows};
    if (layout_.parameters.back().shape.size() == 2) {
      tensor.shape.insert(transposed ? tensor.shape.begin() : tensor.shape.end(), layout_.parameters.back().shape[1]);
    }
  }
  // Adds the piece that stores the next `rows` rows of the newest parameter at `tensor_row` of the newest tensor.
  void AddPiece(int64_t tensor_row, int64_t rows) {
    HfPiece piece;
    piece.parameter = static_cast<int>(layout_.parameters.size()) - 1;
    piece.tensor = static_cast<int>(layout_.tensors.size()) - 1;
    std::vector<HfPiece>& pieces = layout_.parameters.back().pieces;
    piece.row = pieces.empty() ? 0 : pieces.back().row + pieces.back().rows;
    piece.tensor_row = tensor_row;
    piece.rows = rows;
    pieces.push_back(piece);
    layout_.tensors.back().pieces.push_back(piece);
  }

  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<Source>& sources,
           bool transposed = false) {
    AddParameter(name, std::move(shape));
    for (const Source& source : sources) {
      AddTensor(source.tensor, source.rows, transposed);
      AddPiece(0, source.rows);
    }
  }

  // Adds a linear layer, whose bias is split over the sources like its weight. `sources` are names without ".weight".
  void AddLinear(const std::string& name, int64_t out, int64_t in, bool bias, const std::vector<Source>& sources,
                 bool transposed = false) {
    std::vector<Source> weights = sources, biases = sources;
    for (Source& source : weights) source.tensor += ".weight";
    for (Source& source : biases) source.tensor += ".bias";
    Add(name + ".weight", {out, in}, weights, transposed);
    if (bias) Add(name + ".bias", {out}, biases);
  }
  void AddLinear(const std::string& name, int64_t out, int64_t in, bool bias, const std::string& tensor,
                 bool transposed = false) {
    AddLinear(name, out, in, bias, std::vector<Source>{{tensor, out}}, transposed);
  }

  void AddNorm(const std::string& name, const std::string& tensor) {
    Add(name + ".weight", {c_.width}, {{tensor + ".weight", c_.width}});
    if (c_.norm == NormKind::kLayerNorm) Add(name + ".bias", {c_.width}, {{tensor + ".bias", c_.width}});
  }

  void AddEmbedding(const std::string& tensor) {
    layout_.embedding_name = tensor;
    Add("embedding.weight", {c_.vocabulary, c_.width}, {{tensor, c_.vocabulary}});
  }

  void BuildLlamaLike() {
    const int64_t HD = c_.heads * c_.head_width, GD = c_.kv_heads * c_.head_width, C = c_.width, F = c_.hidden;
    layout_.prefix = "model.";
    AddEmbedding("embed_tokens.weight");
    for (int64_t layer = 0; layer < c_.layers; ++layer) {
      const std::string ours = absl::StrCat("blocks.", layer, "."), theirs = absl::StrCat("layers.", layer, ".");
      const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
      AddNorm(ours + "attention_norm", theirs + "input_layernorm");
      AddLinear(ours + "attention.qkv", HD + 2 * GD, C, c_.qkv_bias,
                {{attention + "q_proj", HD}, {attention + "k_proj", GD}, {attention + "v_proj", GD}});
      if (c_.qk_norm) {
        for (const std::string norm : {"q_norm.weight", "k_norm.weight"}) {
          Add(ours + "attention." + norm, {c_.head_width}, {{attention + norm, c_.head_width}});
        }
      }
      AddLinear(ours + "attention.output", C, HD, c_.linear_bias, attention + "o_proj");
      AddNorm(ours + "ffn_norm", theirs + "post_attention_layernorm");
      AddLinear(ours + "ffn.gate_up", 2 * F, C, c_.linear_bias, {{mlp + "gate_proj", F}, {mlp + "up_proj", F}});
      AddLinear(ours + "ffn.down", C, F, c_.linear_bias, mlp + "down_proj");
    }
    AddNorm("final_norm", "norm");
  }

  void BuildGpt2() {
    const int64_t C = c_.width, F = c_.hidden;
    layout_.prefix = "transformer.";
    AddEmbedding("wte.weight");
    Add("embedding.positions", {c_.max_positions, C}, {{"wpe.weight", c_.max_positions}});
    for (int64_t layer = 0; layer < c_.layers; ++layer) {
      const std::string ours = absl::StrCat("blocks.", layer, "."), theirs = absl::StrCat("h.", layer, ".");
      constexpr bool kTransposed = true;
      AddNorm(ours + "attention_norm", theirs + "ln_1");
      AddLinear(ours + "attention.qkv", 3 * C, C, true, theirs + "attn.c_attn", kTransposed);
      AddLinear(ours + "attention.output", C, C, true, theirs + "attn.c_proj", kTransposed);
      AddNorm(ours + "ffn_norm", theirs + "ln_2");
      AddLinear(ours + "ffn.up", F, C, true, theirs + "mlp.c_fc", kTransposed);
      AddLinear(ours + "ffn.down", C, F, true, theirs + "mlp.c_proj", kTransposed);
    }
    AddNorm("final_norm", "ln_f");
  }

  // Adds the QKV projection. The engine stores all query heads, then all key heads, then all value heads. Falcon
  // stores, for each of the G groups, its H / G query heads, its key head and its value head.
  void AddFalconQkv(const std::string& name, std::vector<int64_t> shape, const std::string& tensor) {
    const int64_t G = c_.kv_heads, D = c_.head_width, queries = c_.heads / G * D, group = queries + 2 * D;
    AddParameter(name, std::move(shape));
    AddTensor(tensor, G * group, /*transposed=*/false);
    for (int64_t g = 0; g < G; ++g) AddPiece(g * group, queries);
    for (int64_t g = 0; g < G; ++g) AddPiece(g * group + queries, D);
    for (int64_t g = 0; g < G; ++g) AddPiece(g * group + queries + D, D);
  }

  void BuildFalcon() {
    const int64_t C = c_.width, F = c_.hidden, QKV = (c_.heads + 2 * c_.kv_heads) * c_.head_width;
    layout_.prefix = "transformer.";
    AddEmbedding("word_embeddings.weight");
    for (int64_t layer = 0; layer < c_.layers; ++layer) {
      const std::string ours = absl::StrCat("blocks.", layer, "."), theirs = absl::StrCat("h.", layer, ".");
      const std::string qkv = theirs + "self_attention.query_key_value";
      AddNorm(ours + "attention_norm", theirs + (c_.parallel_norms ? "ln_attn" : "input_layernorm"));
      AddFalconQkv(ours + "attention.qkv.weight", {QKV, C}, qkv + ".weight");
      if (c_.qkv_bias) AddFalconQkv(ours + "attention.qkv.bias", {QKV}, qkv + ".bias");
      AddLinear(ours + "attention.output", C, C, c_.linear_bias, theirs + "self_attention.dense");
      if (c_.parallel_norms) {
        AddNorm(ours + "ffn_norm", theirs + "ln_mlp");
      } else if (!c_.parallel_block) {
        AddNorm(ours + "ffn_norm", theirs + "post_attention_layernorm");
      }
      AddLinear(ours + "ffn.up", F, C, c_.linear_bias, theirs + "mlp.dense_h_to_4h");
      AddLinear(ours + "ffn.down", C, F, c_.linear_bias, theirs + "mlp.dense_4h_to_h");
    }
    AddNorm("final_norm", "ln_f");
  }

  const DecoderConfig& c_;
  HfLayout layout_;
};

}  // namespace

absl::StatusOr<HfLayout> MakeHfLayout(const DecoderConfig& config) {
  SHALE_ASSIGN_OR_RETURN(const HfModelType type, ChooseHfModelType(config));
  return Builder(config).Build(type);
}

bool IsKnownHfBuffer(absl::string_view name) {
  if (name == "rotary_emb.inv_freq") return true;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits('.', 2));
  if (parts.size() != 3 || (parts[0] != "layers" && parts[0] != "h")) return false;
  if (parts[1].empty() || parts[1].find_first_not_of("0123456789") != absl::string_view::npos) return false;
  constexpr absl::string_view kBuffers[] = {"attn.bias", "attn.masked_bias", "self_attn.rotary_emb.inv_freq",
                                            "self_attention.rotary_emb.inv_freq",
                                            "self_attention.maybe_rotary.inv_freq"};
  return std::find(std::begin(kBuffers), std::end(kBuffers), parts[2]) != std::end(kBuffers);
}

}  // namespace shale
