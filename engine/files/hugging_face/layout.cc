#include "engine/files/hugging_face/layout.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/compile/model/adapter.h"
#include "engine/files/hugging_face/config.h"
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

constexpr int64_t kStreamedFloats = int64_t{1} << 19;  // 2 MiB.

// Writes tensors one after another, with values from the engine's parameters.
class TensorStream {
 public:
  TensorStream(const HfLayout& layout, const HfParameterReader& reader) : layout_(layout), reader_(reader) {}

  absl::Status Write(const HfTensor& tensor, SafetensorsWriter& writer) {
    return tensor.transposed ? WriteTransposed(tensor, writer) : WriteRows(tensor, writer);
  }

 private:
  const HfParameter& ParameterOf(const HfPiece& piece) const { return layout_.parameters[piece.parameter]; }

  absl::Span<float> Staging(std::vector<float>& buffer, int64_t count) {
    if (buffer.size() < static_cast<size_t>(count)) buffer.resize(count);
    return absl::MakeSpan(buffer).subspan(0, count);
  }

  absl::Status WriteRows(const HfTensor& tensor, SafetensorsWriter& writer) {
    const std::string name = layout_.FullName(tensor);
    for (const HfPiece& piece : tensor.pieces) {
      const int64_t columns = ParameterOf(piece).columns();
      const int64_t end = (piece.row + piece.rows) * columns;
      for (int64_t at = piece.row * columns; at < end; at += kStreamedFloats) {
        const absl::Span<float> values = Staging(tile_, std::min(kStreamedFloats, end - at));
        SHALE_RETURN_IF_ERROR(reader_(ParameterOf(piece).name, at, values));
        SHALE_RETURN_IF_ERROR(writer.AppendFloat32(name, values));
      }
    }
    return absl::OkStatus();
  }

  // Writes a tensor that stores a parameter's [rows, columns] as [columns, rows]. A tile consists of all rows of as
  // many columns as fit into it. If not even one column fits, a tile is a range of rows of one column.
  absl::Status WriteTransposed(const HfTensor& tensor, SafetensorsWriter& writer) {
    const std::string name = layout_.FullName(tensor);
    const int64_t columns = tensor.shape[0], rows = tensor.shape[1];
    const int64_t tile_rows = std::min(rows, kStreamedFloats);
    const int64_t tile_columns = std::clamp<int64_t>(kStreamedFloats / rows, 1, columns);
    for (int64_t column = 0; column < columns; column += tile_columns) {
      const int64_t width = std::min(tile_columns, columns - column);
      for (int64_t row = 0; row < rows; row += tile_rows) {
        const int64_t height = std::min(tile_rows, rows - row);
        const absl::Span<float> tile = Staging(tile_, width * height);
        const absl::Span<float> run = Staging(run_, width);
        for (const HfPiece& piece : tensor.pieces) {
          const int64_t from = std::max(row, piece.tensor_row);
          const int64_t to = std::min(row + height, piece.tensor_row + piece.rows);
          for (int64_t r = from; r < to; ++r) {
            const int64_t our_row = piece.row + r - piece.tensor_row;
            SHALE_RETURN_IF_ERROR(reader_(ParameterOf(piece).name, our_row * columns + column, run));
            for (int64_t c = 0; c < width; ++c) tile[c * height + r - row] = run[c];
          }
        }
        SHALE_RETURN_IF_ERROR(writer.AppendFloat32(name, tile));
      }
    }
    return absl::OkStatus();
  }

  const HfLayout& layout_;
  const HfParameterReader& reader_;
  std::vector<float> tile_, run_;
};

// Adds a parameter, and the tensor that holds it, whose rows `pieces` may have in another order.
void Add(std::string name, std::string tensor, std::vector<int64_t> shape, std::vector<HfPiece> pieces,
         HfLayout& layout) {
  for (HfPiece& piece : pieces) {
    piece.parameter = static_cast<int>(layout.parameters.size());
    piece.tensor = static_cast<int>(layout.tensors.size());
  }
  layout.parameter_index[name] = static_cast<int>(layout.parameters.size());
  layout.parameters.push_back({std::move(name), shape, pieces});
  std::sort(pieces.begin(), pieces.end(),
            [](const HfPiece& a, const HfPiece& b) { return a.tensor_row < b.tensor_row; });
  layout.tensors.push_back({.name = std::move(tensor), .shape = std::move(shape), .pieces = std::move(pieces)});
}

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

absl::Status WriteHfTensors(const HfLayout& layout, const std::vector<const HfTensor*>& tensors, SafetensorsDType dtype,
                            const HfParameterReader& reader, const std::string& path) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const HfTensor* tensor : tensors) entries.push_back({layout.FullName(*tensor), dtype, tensor->shape});
  SHALE_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                         SafetensorsWriter::Create(path, entries, {{"format", "pt"}}));
  TensorStream stream(layout, reader);
  for (const HfTensor* tensor : tensors) SHALE_RETURN_IF_ERROR(stream.Write(*tensor, *writer));
  return writer->Finish();
}

absl::StatusOr<HfLayout> MakeHfAdapterLayout(const DecoderConfig& config) {
  SHALE_ASSIGN_OR_RETURN(const HfLayout base, MakeHfLayout(config));
  const int64_t rank = config.adapter->rank;
  HfLayout layout;
  layout.prefix = absl::StrCat("base_model.model.", base.prefix);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const AdaptableLinear& linear : AdaptedLinears(config, layer)) {
      const std::string weight = absl::StrCat("blocks.", layer, ".", linear.linear, ".weight");
      std::vector<HfPiece> rows_of_b;
      int tensor = -1;
      for (HfPiece piece : base.parameters[base.parameter_index.at(weight)].pieces) {
        if (piece.row < linear.row || piece.row >= linear.row + linear.out) continue;
        SHALE_CHECK(tensor < 0 || piece.tensor == tensor) << linear.name << " is several layers in transformers";
        tensor = piece.tensor;
        piece.row -= linear.row;
        rows_of_b.push_back(piece);
      }
      SHALE_CHECK(tensor >= 0) << weight;
      const std::string module(absl::StripSuffix(base.tensors[tensor].name, ".weight"));
      Add(linear.NameOfA(layer), module + ".lora_A.weight", {rank, linear.in}, {{.rows = rank}}, layout);
      Add(linear.NameOfB(layer), module + ".lora_B.weight", {linear.out, rank}, std::move(rows_of_b), layout);
    }
  }
  return layout;
}

}  // namespace shale
