#include "engine/hugging_face/tensor_stream.h"

#include <algorithm>
#include <memory>

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

}  // namespace

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

}  // namespace shale
