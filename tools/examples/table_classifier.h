// A model of one's own: a residual MLP that classifies the rows of a table.
//
// A cell is a token: a category, or the number of the bin that a number falls into. The data is one row after another,
// each the row's cells and then its class, with one token before the first row. With a sequence_length of one more than
// a row has cells, a sequence is then a token that means nothing (the class of the row before) and the cells of a row,
// and its last target is the class.
//
// B rows of a micro-batch, S tokens in a sequence, E width of a cell, C width of the residual stream, V vocabulary.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/shale.h"

namespace shale::examples {

struct TableClassifierSettings {
  int64_t cell_width = 8;
  int64_t width = 32;
  int64_t hidden = 64;  // Inner width of a block.
  int64_t blocks = 2;
};

namespace table_classifier {

// A linear layer with a bias. Its parameters are `name`.weight and `name`.bias.
inline Tensor Dense(GraphBuilder& b, GroupId group, const std::string& name, const Tensor& x, int64_t in, int64_t out,
                    const std::string& result) {
  const Initializer normal = {Initializer::Kind::kNormal, 0.1}, zeros = {Initializer::Kind::kZeros};
  const ParameterId weight = b.AddParameter(group, name + ".weight", {out, in}, normal);
  const ParameterId bias = b.AddParameter(group, name + ".bias", {out}, zeros);
  return Linear(b, x, weight, bias, result);
}

inline NormParameters LayerNorm(GraphBuilder& b, GroupId group, const std::string& name, int64_t width) {
  const ParameterId weight = b.AddParameter(group, name + ".weight", {width}, {Initializer::Kind::kOnes});
  const ParameterId bias = b.AddParameter(group, name + ".bias", {width}, {Initializer::Kind::kZeros});
  return {.weight = weight, .bias = bias};
}

inline absl::StatusOr<ModelGraph> Build(const TableClassifierSettings& s, const GraphOptions& options) {
  GraphBuilder b(options);
  const int64_t B = options.micro_batch, S = options.sequence_length, V = options.vocabulary, C = s.width;

  const GroupId cells = b.AddGroup("cells");
  const ParameterId table = b.AddParameter(cells, "cells.weight", {V, s.cell_width}, {Initializer::Kind::kNormal, 0.5});
  b.BeginUnit("cells");
  b.EndUnit(Embedding(b, table, std::nullopt));

  const GroupId rows = b.AddGroup("rows");
  b.BeginUnit("rows");
  const Tensor row = Reshape(b, b.UnitInput(), {B, S * s.cell_width});  // The cells of a row, side by side.
  b.EndUnit(Dense(b, rows, "rows", row, S * s.cell_width, C, "out"));

  for (int64_t i = 0; i < s.blocks; ++i) {
    const std::string name = absl::StrCat("blocks.", i);
    const GroupId group = b.AddGroup(name);
    b.BeginUnit(name, static_cast<int>(i));
    const Tensor x = b.UnitInput();
    b.SetSublayer(Sublayer::kFeedForward);  // What the preset FFN recomputes.
    const Tensor normed = Norm(b, x, LayerNorm(b, group, name + ".norm", C), "norm");
    const Tensor up = Dense(b, group, name + ".up", normed, C, s.hidden, "up");
    const Tensor down = Dense(b, group, name + ".down", Gelu(b, up, GeluKind::kErf), s.hidden, C, "down");
    b.EndUnit(AddResidual(b, x, down, "out"));
  }

  const GroupId classes = b.AddGroup("classes");
  const NormParameters norm = LayerNorm(b, classes, "classes.norm", C);
  const ParameterId weight = b.AddParameter(classes, "classes.weight", {V, C}, {Initializer::Kind::kNormal, 0.1});
  b.BeginUnit("classes");
  LinearCrossEntropy(b, Norm(b, b.UnitInput(), norm, "norm"), weight, std::nullopt);
  b.EndLastUnit();
  return b.Finish();
}

}  // namespace table_classifier

inline CustomModel TableClassifier(const TableClassifierSettings& s) {
  return {.name = "table_classifier",
          .digest =
              absl::StrCat("cell_width=", s.cell_width, " width=", s.width, " hidden=", s.hidden, " blocks=", s.blocks),
          .build = [s](const GraphOptions& options) { return table_classifier::Build(s, options); },
          .layers = s.blocks,
          .last_target_only = true};
}

}  // namespace shale::examples
