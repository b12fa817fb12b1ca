// A model of one's own with data of its own: a residual MLP that classifies the rows of a table.
//
// A position is a row. Its features are the cells, as numbers, and its target is the class.
//
// T rows of a micro-batch, F cells of a row, C width of the residual stream, V classes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/shale.h"

namespace shale::examples {

struct Table {
  int64_t cells = 0;            // F, of a row.
  int64_t classes = 0;          // V
  std::vector<float> features;  // [rows, F]
  std::vector<int32_t> labels;  // [rows], the class of each row.
};

// The rows of a table: a sample is one of them. Safe for concurrent use. REQUIRES: the table has a row.
class TableRows : public DataSource {
 public:
  TableRows(std::string name, Table table)
      : DataSource({.name = std::move(name),
                    .samples = std::ssize(table.labels),
                    .sequence_length = 1,
                    .vocabulary = table.classes,
                    .features = table.cells}),
        table_(std::move(table)) {}

  absl::Status Read(int64_t sample, const SampleParts& out) override {
    std::copy_n(table_.features.begin() + sample * table_.cells, table_.cells, out.features.begin());
    out.targets[0] = table_.labels[sample];
    return absl::OkStatus();
  }

 private:
  const Table table_;
};

struct TableClassifierSettings {
  int64_t cells = 8;  // F
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
  const int64_t V = options.vocabulary, C = s.width;

  const GroupId rows = b.AddGroup("rows");
  b.BeginUnit("rows");
  b.EndUnit(Dense(b, rows, "rows", Features(b, s.cells), s.cells, C, "out"));

  for (int64_t i = 0; i < s.blocks; ++i) {
    const std::string name = absl::StrCat("blocks.", i);
    const GroupId group = b.AddGroup(name);
    b.BeginUnit(name, static_cast<int>(i));
    const Tensor x = b.UnitInput();
    b.SetSublayer(Sublayer::kFeedForward);  // What the preset FFN recomputes.
    const Tensor normed = Norm(b, x, LayerNorm(b, group, name + ".norm", C), "norm");
    const Tensor up = Dense(b, group, name + ".up", normed, C, s.hidden, "up");
    const Tensor down = Dense(b, group, name + ".down", GeluErf(b, up), s.hidden, C, "down");
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
          .digest = absl::StrCat("cells=", s.cells, " width=", s.width, " hidden=", s.hidden, " blocks=", s.blocks),
          .build = [s](const GraphOptions& options) { return table_classifier::Build(s, options); },
          .layers = s.blocks};
}

}  // namespace shale::examples
