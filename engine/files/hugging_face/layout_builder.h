// Builds the layout of a decoder's tensors, for the families (engine/files/hugging_face/family.h).
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/model/config.h"
#include "engine/files/hugging_face/layout.h"

namespace shale {

// A layout on its way. A family's function adds the parameters in any order; those of a head that is not tied are added
// at the end.
struct HfLayoutBuilder {
  const DecoderConfig& c;
  HfLayout layout = {};

  // A tensor that holds the next `rows` rows of a parameter.
  struct Source {
    std::string tensor;
    int64_t rows;
  };

  void AddParameter(const std::string& name, std::vector<int64_t> shape) {
    HfParameter& parameter = layout.parameters.emplace_back();
    parameter.name = name;
    parameter.shape = std::move(shape);
  }
  void AddTensor(const std::string& name, int64_t rows, bool transposed) {
    HfTensor& tensor = layout.tensors.emplace_back();
    tensor.name = name;
    tensor.transposed = transposed;
    tensor.shape = {rows};
    if (layout.parameters.back().shape.size() == 2) {
      tensor.shape.insert(transposed ? tensor.shape.begin() : tensor.shape.end(), layout.parameters.back().shape[1]);
    }
  }
  // Adds the piece that stores the next `rows` rows of the newest parameter at `tensor_row` of the newest tensor.
  void AddPiece(int64_t tensor_row, int64_t rows) {
    HfPiece piece;
    piece.parameter = static_cast<int>(layout.parameters.size()) - 1;
    piece.tensor = static_cast<int>(layout.tensors.size()) - 1;
    std::vector<HfPiece>& pieces = layout.parameters.back().pieces;
    piece.row = pieces.empty() ? 0 : pieces.back().row + pieces.back().rows;
    piece.tensor_row = tensor_row;
    piece.rows = rows;
    pieces.push_back(piece);
    layout.tensors.back().pieces.push_back(piece);
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
    Add(name + ".weight", {c.width}, {{tensor + ".weight", c.width}});
    if (c.norm == NormKind::kLayerNorm) Add(name + ".bias", {c.width}, {{tensor + ".bias", c.width}});
  }

  void AddEmbedding(const std::string& tensor) {
    layout.embedding_name = tensor;
    Add("embedding.weight", {c.vocabulary, c.width}, {{tensor, c.vocabulary}});
  }

  // Adds the head, and puts pieces and names in order.
  HfLayout Finish() {
    if (!c.tied_head) {
      Add("head.weight", {c.vocabulary, c.width}, {{HfLayout::kHeadName, c.vocabulary}});
      layout.tensors.back().prefixed = false;
    }
    for (HfTensor& tensor : layout.tensors) {
      std::sort(tensor.pieces.begin(), tensor.pieces.end(),
                [](const HfPiece& a, const HfPiece& b) { return a.tensor_row < b.tensor_row; });
    }
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      layout.parameter_index[layout.parameters[i].name] = static_cast<int>(i);
    }
    return std::move(layout);
  }
};

}  // namespace shale
