#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/hugging_face/layout.h"
#include "engine/model/adapter.h"
#include "kernels/check.h"

namespace shale {
namespace {

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
