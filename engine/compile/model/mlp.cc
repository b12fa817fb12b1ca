// The facts of MLPs (engine/compile/model/config.h).

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "engine/compile/model/config.h"
#include "engine/compile/model/model.h"
#include "engine/strings/printing.h"

namespace shale {

unsigned __int128 MlpConfig::ParameterCount(int64_t sequence_length) const {
  using Wide = unsigned __int128;
  const Wide width = hidden;
  const Wide first = static_cast<Wide>(sequence_length) * embedding * width + width;
  const Wide others = (layers - 1) * (width * width + width);
  return static_cast<Wide>(vocabulary) * embedding + first + others + width * vocabulary + vocabulary;
}

double MlpConfig::WidestRow() const { return std::max<double>(embedding, hidden); }

double MlpConfig::AttentionFlopsPerToken(int64_t) const { return 0; }

std::string MlpConfig::Description() const {
  return absl::StrCat("MLP, ", Plural(layers, "hidden layer"), " of width ", WithCommas(hidden), ", embedding ",
                      WithCommas(embedding), ", vocabulary ", WithCommas(vocabulary));
}

absl::StatusOr<ModelGraph> BuildMlp(const MlpConfig& c, GraphOptions options) {
  using Kind = Initializer::Kind;
  options.vocabulary = c.vocabulary;
  options.last_target_only = c.LastTargetOnly();
  GraphBuilder b(options);
  const Initializer normal = {Kind::kNormal, c.init_std};
  const int64_t B = options.micro_batch, S = options.sequence_length;

  const GroupId embedding = b.AddGroup("embedding");
  const ParameterId table = b.AddParameter(embedding, "embedding.weight", {c.vocabulary, c.embedding}, normal);
  b.BeginUnit("embedding");
  b.EndUnit(Embedding(b, table, std::nullopt));

  int64_t width = S * c.embedding;
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string name = absl::StrCat("hidden.", i);
    const GroupId group = b.AddGroup(name);
    const ParameterId weight = b.AddParameter(group, name + ".weight", {c.hidden, width}, normal);
    const ParameterId bias = b.AddParameter(group, name + ".bias", {c.hidden}, {Kind::kZeros});
    b.BeginUnit(name, static_cast<int>(i));
    b.SetSublayer(Sublayer::kFeedForward);
    // One row holds the concatenated embeddings of a sequence.
    const Tensor x = b.UnitInput().Reshape({B, width});
    b.EndUnit(GeluTanh(b, Linear(b, x, weight, bias, "ffn.up")));
    width = c.hidden;
  }

  const GroupId head = b.AddGroup("head");
  const ParameterId weight = b.AddParameter(head, "head.weight", {c.vocabulary, width}, normal);
  const ParameterId bias = b.AddParameter(head, "head.bias", {c.vocabulary}, {Kind::kZeros});
  b.BeginUnit("head");
  LinearCrossEntropy(b, b.UnitInput(), weight, bias);
  b.EndLastUnit();
  return b.Finish();
}

}  // namespace shale
