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
#include "engine/files/hugging_face/family.h"
#include "engine/files/hugging_face/layout_builder.h"
#include "kernels/check.h"

namespace shale {
namespace {

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
  HfLayoutBuilder builder{.c = config};
  FamilyOf(type).layout(builder);
  return builder.Finish();
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
